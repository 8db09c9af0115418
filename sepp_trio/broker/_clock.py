"""The broker's clock: the epoch at opening plus what has passed on Trio's clock since."""

from __future__ import annotations

import math
import time

import trio

from ._time import NEVER

# Sums of seconds are a hair off: 5 s after 0.3 s may be 5.299999999.
_ROUNDING_MS = 1e-3


class BrokerClock:
    """Milliseconds since the epoch that never jump, and stand still where Trio's clock does."""

    def __init__(self) -> None:
        """Read the wall clock, once. Needs a running Trio loop."""
        self._opened_ms = int(time.time() * 1000)
        self._opened_at = trio.current_time()

    def now_ms(self) -> int:
        """The time, whole milliseconds. Needs a running Trio loop."""
        passed = (trio.current_time() - self._opened_at) * 1000
        return self._opened_ms + int(passed + _ROUNDING_MS)

    def trio_time(self, at_ms: int) -> float:
        """The point on Trio's clock at which :meth:`now_ms` gets there."""
        if at_ms >= NEVER:
            return math.inf
        return self._opened_at + (at_ms - self._opened_ms) / 1000
