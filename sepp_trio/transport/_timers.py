"""One timer for all deadlines of a channel.

A cancel scope per call would cost more than the rest of the call; here a
deadline costs a place in a heap, and the task is only re-armed for an earlier
one than it waits for.
"""

from __future__ import annotations

import heapq
import itertools
import math
from typing import Protocol

import trio


class Target(Protocol):
    """Something with a deadline.  ``done`` targets are forgotten."""

    done: bool

    def expired(self) -> None:
        """The deadline has come, and ``done`` was not set."""


class Timers:
    """Calls targets when their time has come; :meth:`run` must be running."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Target]] = []
        self._order = itertools.count()
        self._armed = math.inf
        self._scope: trio.CancelScope | None = None
        self._sweep_at = 256

    def add(self, deadline: float, target: Target) -> None:
        """Call ``target.expired()`` at ``deadline`` on Trio's clock, from :meth:`run`.

        There is no removal: set ``target.done``.
        """
        heap = self._heap
        heapq.heappush(heap, (deadline, next(self._order), target))
        if len(heap) > self._sweep_at:
            # Those that are done must not pile up until their time comes.
            heap[:] = [entry for entry in heap if not entry[2].done]
            heapq.heapify(heap)
            self._sweep_at = max(256, 2 * len(heap))
        if deadline < self._armed:
            self._armed = deadline
            if self._scope is not None:
                self._scope.deadline = deadline

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Serve until cancelled."""
        heap = self._heap
        while True:
            while heap and heap[0][2].done:
                heapq.heappop(heap)
            self._armed = heap[0][0] if heap else math.inf
            with trio.CancelScope(deadline=self._armed) as self._scope:
                await trio.sleep_forever()
            now = trio.current_time()
            while heap and heap[0][0] <= now:
                target = heapq.heappop(heap)[2]
                if not target.done:
                    target.expired()
