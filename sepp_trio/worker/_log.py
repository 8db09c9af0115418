"""The worker's log: one line per event, and a bound for what a broken server can cause."""

from __future__ import annotations

import logging

import trio

logger = logging.getLogger("sepp_trio.worker")

_LINES = 5
_PERIOD = 1.0


class Flood:
    """Lets a few lines of each kind through each second and counts the rest."""

    def __init__(self) -> None:
        self._kinds: dict[str, tuple[float, int]] = {}

    def log(self, level: int, kind: str, message: str, *args: object) -> None:
        """Log a line, unless there were enough of its kind in this second."""
        now = trio.current_time()
        since, lines = self._kinds.get(kind, (now, 0))
        if now - since >= _PERIOD:
            if lines > _LINES:
                logger.log(level, "%d more lines like the next were left out", lines - _LINES)
            since, lines = now, 0
        self._kinds[kind] = (since, lines + 1)
        if lines < _LINES:
            logger.log(level, message, *args)
