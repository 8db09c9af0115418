"""Operations, and the batches in which they are applied: what one transaction does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import outcome
import trio
from grpclib.exceptions import GRPCError

from ._answers import Promises, Taker
from ._parked import Reserve
from .engine import Lease


class Operation:
    """A call that waits to be applied; one without a task waits for nobody."""

    __slots__ = ("apply", "gone", "result", "task")

    def __init__(self, apply: Callable[[int], object]) -> None:
        self.apply = apply
        self.task: trio.lowlevel.Task | None = None
        self.gone = False
        self.result: outcome.Outcome[Any] | None = None

    def run(self, batch: Batch) -> None:
        """Apply it, within the transaction."""
        self.result = _result(self.apply, batch.now)

    def deliver(self) -> None:
        """It is committed: its caller gets the result."""
        if self.task is not None and self.result is not None and not self.gone:
            trio.lowlevel.reschedule(self.task, self.result)


class Taking(Operation):
    """One that takes large things out of the store; its result may be ``None``: not now."""

    __slots__ = ("allowance", "size", "take", "taker")

    def __init__(self, take: Callable[[int], tuple[object, int]], taker: Taker) -> None:
        super().__init__(self._apply)
        self.take = take
        self.taker = taker
        self.allowance = self.size = 0

    def run(self, batch: Batch) -> None:
        self.allowance = batch.promises.allowance(self.taker)
        super().run(batch)
        batch.promises.add(self.taker, self.size)

    def _apply(self, _: int) -> object:
        if not self.allowance:
            return None
        taken, self.size = self.take(self.allowance)
        return taken

    def deliver(self) -> None:
        if not self.gone:
            self.taker.hold(self.size)
        super().deliver()


@dataclass(slots=True)
class Batch:
    """What one transaction does, and how it ended."""

    now: int
    operations: Sequence[Operation]
    reserves: Sequence[Reserve]
    promises: Promises = field(default_factory=Promises)
    served: list[tuple[Reserve, list[Lease]]] = field(default_factory=list)
    crowded: list[Reserve] = field(default_factory=list)
    """Reserves whose peers have to take their earlier answers first."""
    error: GRPCError | None = None


def size_of(leases: list[Lease]) -> int:
    """Bytes of their messages."""
    return sum(len(lease.message) for lease in leases)


def _result(apply: Callable[[int], object], now: int) -> outcome.Outcome[Any]:
    try:
        return outcome.Value(apply(now))
    except GRPCError as error:
        # A refusal has changed nothing; the rest of the batch goes on.
        return outcome.Error(error)
