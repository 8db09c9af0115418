"""How long the kit waits for what may never come, where nobody says: no test hangs."""

from __future__ import annotations

from typing import Final

import trio

from sepp_trio.types import Duration
from sepp_trio.types._checks import MAX_DURATION, seconds

_VIRTUAL: Final = 3600.0
_REAL: Final = 60.0

NO_LIMIT: Final = MAX_DURATION
"""For what is bounded in another way."""


def limit_of(limit: Duration | None, *, in_thread: bool = False) -> float:
    """The limit in seconds; if not given an hour of a ``MockClock``, but a minute of a real one,
    and of what a thread does, which takes real time on any.

    Raises:
        TypeError, ValueError: it is no duration.
    """
    if limit is not None:
        return seconds(limit, "limit")
    is_virtual = hasattr(trio.lowlevel.current_clock(), "autojump_threshold")
    return _VIRTUAL if is_virtual and not in_thread else _REAL
