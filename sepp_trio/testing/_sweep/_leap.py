"""Virtual time passes in half the turns of Trio's loop: a sweep sleeps a million times."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import trio

from ._trio import Idle, idle_of


class Leap(trio.abc.Instrument):
    """Lets a ``MockClock`` leap just before Trio waits, and not when it has waited in vain,
    where it is certain that the wait will be in vain: there are no sockets and no threads."""

    def __init__(self, clock: trio.testing.MockClock, idle: Idle) -> None:
        self._clock = clock
        self._idle = idle

    def before_io_wait(self, timeout: float) -> None:
        if not self._idle.is_certain():
            return
        clock = self._clock
        jump = self._idle.next_deadline() - clock.current_time()
        # The threshold is another one while the clock waits for threads.
        if 0 < jump < math.inf and clock.autojump_threshold == 0:
            clock.jump(jump)


@contextmanager
def leaping() -> Iterator[None]:
    """The block. Has no effect on other clocks."""
    from trio.testing import MockClock  # here, for it imports pytest if it is there

    clock, idle = trio.lowlevel.current_clock(), idle_of()
    if not isinstance(clock, MockClock) or idle is None:
        yield
        return
    leap = Leap(clock, idle)
    trio.lowlevel.add_instrument(leap)
    try:
        yield
    finally:
        trio.lowlevel.remove_instrument(leap)
