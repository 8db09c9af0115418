"""Reserves that wait for jobs, in the order in which they came."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from operator import attrgetter

import trio

from ._answers import Taker
from .validation import ReservePlan


class Reserve:
    """One reserve call that has not been answered."""

    __slots__ = ("deadline", "gone", "number", "plan", "scope", "taker", "task")

    def __init__(self, plan: ReservePlan, taker: Taker, number: int, deadline: float) -> None:
        self.plan = plan
        self.taker = taker
        # The order of arrival.
        self.number = number
        # When it has waited long enough, on Trio's clock.
        self.deadline = deadline
        # Gets the deadline once the first attempt has found nothing: there is always one.
        self.scope = trio.CancelScope()
        self.task: trio.lowlevel.Task | None = None
        # Its caller has left, or was answered.
        self.gone = False


class ParkedReserves:
    """The waiting reserves, by queue."""

    def __init__(self) -> None:
        # Dicts as ordered sets.
        self._by_queue: dict[str, dict[Reserve, None]] = {}
        self._all: dict[Reserve, None] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, reserve: Reserve) -> None:
        """Have it wait; it came later than all others."""
        self._all[reserve] = None
        for queue in reserve.plan.queues:
            self._by_queue.setdefault(queue, {})[reserve] = None

    def discard(self, reserve: Reserve) -> None:
        """Have it wait no more, if it does."""
        if reserve not in self._all:
            return
        del self._all[reserve]
        for queue in reserve.plan.queues:
            waiting = self._by_queue[queue]
            del waiting[reserve]
            if not waiting:
                del self._by_queue[queue]

    def clear(self) -> list[Reserve]:
        """Have none wait any more; returns those that did."""
        everyone = list(self._all)
        self._all.clear()
        self._by_queue.clear()
        return everyone

    def in_turn(self, queues: Iterable[str]) -> Iterator[Reserve]:
        """Those that wait for any of the queues, each once, first come first."""
        lines = [self._by_queue[queue] for queue in queues if queue in self._by_queue]
        last = None
        for reserve in heapq.merge(*lines, key=attrgetter("number")):
            if reserve is not last:
                yield reserve
            last = reserve
