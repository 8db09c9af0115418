"""Histories that are to be run: where each of them is cancelled."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ._delivery import Delivery
from ._report import Checkpoint


class Cancels(NamedTuple):
    """Where to cancel in a history: at a checkpoint of each of these deliveries, by attempt."""

    at: tuple[tuple[int, Checkpoint], ...] = ()

    def of(self, attempt: int) -> Checkpoint | None:
        """Where to cancel this delivery, if it is to be."""
        return next((point for number, point in self.at if number == attempt), None)

    @property
    def last(self) -> int:
        """The last delivery that is cancelled; 0 for none."""
        return self.at[-1][0] if self.at else 0


class Level:
    """The histories of one number of cancels, as few objects as possible: there may be millions."""

    def __init__(self) -> None:
        self._parents: list[tuple[Cancels, int, tuple[Checkpoint, ...]]] = []
        self._ends: list[int] = []

    def add(self, cancels: Cancels, deliveries: Sequence[Delivery]) -> None:
        """A history has been run: one more cancel may come at each checkpoint after its last."""
        for delivery in deliveries[cancels.last :]:
            if delivery.checkpoints:
                self._parents.append((cancels, delivery.attempt, delivery.checkpoints))
                self._ends.append(len(self) + len(delivery.checkpoints))

    def __len__(self) -> int:
        """How many there are."""
        return self._ends[-1] if self._ends else 0

    def spread(self, most: int) -> Iterator[Cancels]:
        """All of them, or so many at even distances."""
        count = min(len(self), most)
        for place in range(count):
            index = len(self) * place // count
            parent = bisect_right(self._ends, index)
            cancels, attempt, checkpoints = self._parents[parent]
            checkpoint = checkpoints[index - self._ends[parent]]  # counted from the end
            yield Cancels((*cancels.at, (attempt, checkpoint)))
