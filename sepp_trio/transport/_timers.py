"""One timer for all deadlines of a channel.

A cancel scope per call would cost more than the rest of the call.  Here a
deadline costs a place in a list, as most calls are done long before: only
those that are not when the timer rings are put in order.
"""

from __future__ import annotations

import heapq
import itertools
import math
from typing import Protocol

import trio

_MOST_DONE = 256


class Target(Protocol):
    """Something with a deadline on Trio's clock, ``due``.  ``done`` targets are forgotten."""

    done: bool
    due: float

    def expired(self) -> None:
        """The deadline has come, and ``done`` was not set."""


class Timers:
    """Calls targets when their time has come; :meth:`run` must be running."""

    def __init__(self) -> None:
        self._new: list[Target] = []
        self._heap: list[tuple[float, int, Target]] = []
        self._order = itertools.count()
        self._armed = math.inf
        """When the task wakes up: never later than the first deadline."""
        self._scope: trio.CancelScope | None = None
        self._most_new = self._most_known = _MOST_DONE

    def add(self, target: Target) -> None:
        """Call ``target.expired()`` when it is due, from :meth:`run`.

        There is no removal: set ``target.done``.
        """
        new = self._new
        new.append(target)
        if len(new) > self._most_new:
            # Those that are done must not pile up until their time comes.
            new[:] = [target for target in new if not target.done]
            self._most_new = max(_MOST_DONE, 2 * len(new))
        if target.due < self._armed:
            self._armed = target.due
            if self._scope is not None:
                self._scope.deadline = target.due

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Serve until cancelled."""
        heap, new = self._heap, self._new
        while True:
            with trio.CancelScope(deadline=self._armed) as self._scope:
                await trio.sleep_forever()
            now = trio.current_time()
            for target in new:
                if not target.done:
                    heapq.heappush(heap, (target.due, next(self._order), target))
            new.clear()
            if len(heap) > self._most_known:
                heap[:] = [entry for entry in heap if not entry[2].done]
                heapq.heapify(heap)
                self._most_known = max(_MOST_DONE, 2 * len(heap))
            self._armed = math.inf
            while heap and (heap[0][2].done or heap[0][0] <= now):
                target = heapq.heappop(heap)[2]
                if not target.done:
                    target.expired()
            if heap and heap[0][0] < self._armed:
                self._armed = heap[0][0]
