"""Many timers for the price of one: entries in buckets of time, one task that wakes up for them.

In and out take constant time, because most timers are taken out before they ring: a job
usually ends long before its first beat.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from math import ceil
from typing import Final

import trio

COARSEST: Final = 2.0**-2
"""Seconds; a bucket is at most so wide. The wider, the more beats share a wake-up and a write."""

_FINEST = 2.0**-9
_AT_ONCE = 128
"""Timers that ring between two turns of the scheduler, so that a crowd of them holds up nobody."""


def grain_for(interval: float) -> float:
    """Width of the buckets for timers that repeat at ``interval`` seconds: a 16th of it, or less.

    A power of two, so that the buckets of all widths begin at exact numbers.
    """
    grain = COARSEST
    while grain * 16 > interval and grain > _FINEST:
        grain /= 2
    return grain


class Alarm:
    """What rings when its time has come; it is one entry of a wheel, or of none."""

    __slots__ = ("_bucket",)

    def __init__(self) -> None:
        self._bucket: dict[Alarm, None] | None = None

    def ring(self, now: float) -> None:
        """The time has come; ``now`` is Trio's, looked at once for many."""
        raise NotImplementedError

    def stop(self) -> None:
        """Leave the wheel; harmless when not in it."""
        if self._bucket is not None:
            self._bucket.pop(self, None)
            self._bucket = None


class Timer(Alarm):
    """An alarm that calls a function."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], None]) -> None:
        super().__init__()
        self._call = call

    def ring(self, now: float) -> None:
        self._call()


class TimerWheel:
    """The timers of one run of Trio, on its clock; ``run`` must be running for them to ring."""

    def __init__(self) -> None:
        self._buckets: dict[float, dict[Alarm, None]] = {}
        self._times: list[float] = []  # heap of the buckets' times
        self._wakes_at = float("-inf")
        self._parked = trio.lowlevel.ParkingLot()

    def start(self, timer: Alarm, due: float, grain: float = _FINEST) -> None:
        """Let ``timer`` ring at ``due`` or up to ``grain`` seconds later, and not as before."""
        if timer._bucket is not None:
            timer._bucket.pop(timer, None)
        time = ceil(due / grain) * grain
        bucket = self._buckets.get(time)
        if bucket is None:
            bucket = self._buckets[time] = {}
            heapq.heappush(self._times, time)
            if time < self._wakes_at:
                self._parked.unpark()
        bucket[timer] = None
        timer._bucket = bucket

    def behind(self) -> float:
        """Seconds since the oldest timer that is due and has not rung; 0 without one."""
        return max(trio.current_time() - self._times[0], 0.0) if self._times else 0.0

    async def run(self) -> None:
        """Ring the timers, until cancelled. What ``ring`` raises ends it."""
        while True:
            if not self._times:
                await self._sleep(float("inf"))
            elif self._times[0] > (now := trio.current_time()):
                await self._sleep(self._times[0])
            else:
                await self._ring_next(now)

    async def _sleep(self, until: float) -> None:
        self._wakes_at = until
        try:
            with trio.CancelScope(deadline=until):
                await self._parked.park()
        finally:
            self._wakes_at = float("-inf")

    async def _ring_next(self, now: float) -> None:
        time = heapq.heappop(self._times)
        # Out of the table first: a timer that starts again for this very time gets a new bucket.
        bucket = self._buckets.pop(time)
        rung = 0
        while bucket:
            timer, _ = bucket.popitem()
            timer._bucket = None
            timer.ring(now)
            rung += 1
            if rung % _AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
                now = trio.current_time()
