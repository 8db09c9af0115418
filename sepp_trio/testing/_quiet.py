"""Holds back what the package logs about troubles that were made on purpose."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_LOGGERS: Final = ("", ".broker", ".lease", ".transport", ".transport.server", ".worker")


@contextmanager
def quiet(drop: Callable[[logging.LogRecord], bool]) -> Iterator[None]:
    """Log nothing of the package for which ``drop`` is true, while the block runs."""

    def keep(record: logging.LogRecord) -> bool:
        return not drop(record)

    loggers = [logging.getLogger(f"sepp_trio{name}") for name in _LOGGERS]
    for logger in loggers:
        logger.addFilter(keep)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(keep)
