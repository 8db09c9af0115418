"""The log of the hundreds of stories that Hypothesis tries before it tells one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis.control import current_build_context, currently_in_test_context


@contextmanager
def only_the_last_story_is_logged() -> Iterator[None]:
    """Keep back what sepp_trio logs, but for the replay of the smallest failing story."""
    if not currently_in_test_context() or current_build_context().is_final:
        yield
        return
    logger = logging.getLogger("sepp_trio")
    handlers, propagate = logger.handlers, logger.propagate
    logger.handlers, logger.propagate = [logging.NullHandler()], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = handlers, propagate
