"""When two servers that were asked for the same a little apart may still differ: around deadlines.

A lease, a delay, a window of a key and the retention of a dead letter end on each server at its own
moment, a few milliseconds apart. What is asked between those moments has two right answers. So the
walk notes for each such end from when to when it may come, and what it has a say in; it asks
nothing that has a part in it until both servers have passed it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

BEFORE = 0.002
AFTER = 0.010
# What an operation may take on both servers, or its answers do not count.
LONGEST = 0.035


@dataclass(frozen=True)
class End:
    """Something ends between `first` and `last`, on the wall clock, and has a say in `parts`."""

    first: float
    last: float
    parts: frozenset[Hashable]


class Timers:
    """The ends to come."""

    def __init__(self) -> None:
        self._ends: list[End] = []

    def add(self, first: float, last: float, *parts: Hashable) -> None:
        """Note an end; `first` and `last` from the times before and after the call that set it."""
        self._ends.append(End(first - BEFORE, last + AFTER, frozenset(parts)))

    def in_the_way(self, parts: Iterable[Hashable], first: float, last: float) -> list[End]:
        """The ends that may come between the two times and have a say in one of the parts."""
        wanted = set(parts)
        return [
            end
            for end in self._ends
            if end.first <= last and first <= end.last and wanted & end.parts
        ]

    def wait_for(self, parts: Iterable[Hashable]) -> None:
        """Sleep until none of the parts is about to be decided."""
        parts = list(parts)
        now = time.time()
        self._ends = [end for end in self._ends if end.last >= now]
        while ends := self.in_the_way(parts, now, now + LONGEST):
            time.sleep(max(end.last for end in ends) - now + 0.001)
            now = time.time()

    def free_moment(self, after: float, parts: Iterable[Hashable]) -> float:
        """A time from `after` on that an end of these parts may have to itself."""
        parts = list(parts)
        while ends := self.in_the_way(parts, after - LONGEST, after + LONGEST):
            after = max(end.last for end in ends) + LONGEST + BEFORE + 0.001
        return after
