"""The one place where operations meet the store: batches, each one transaction.

Operations that wait are taken together, applied in the order in which they came, and answered
after the commit. Reserves go last, so that they find what the same batch has made ready: first
those that are parked, then the new ones. What time does (schedules, expiries) is swept before
the operations, and by a timer when there are none.

A database file is worked on in a thread, one batch after the other, and the Trio loop never waits
for the disk. A database in memory is worked on in the loop: no clock can leap over the work.
"""

from __future__ import annotations

import logging
import math
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, TypeVar

import outcome
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ._answers import Taker
from ._batch import Batch, Operation, Taking, size_of
from ._changes import Observer
from ._clock import BrokerClock
from ._database import in_words
from ._parked import ParkedReserves, Reserve
from .engine import Engine, Lease
from .store import Store
from .validation import ReservePlan

T = TypeVar("T")

log = logging.getLogger("sepp_trio.broker")

# So that a flood of operations does not make the first of them wait for the last.
_OPERATIONS_AT_ONCE: Final = 1000
# A sweep that failed (disk full) is tried again with the next batch, or after so many seconds.
_RETRY_SWEEP: Final = 1.0
_TELL_AGAIN: Final = 10.0


@dataclass(frozen=True, slots=True)
class CommitterStatistics:
    """``batches`` that were committed or failed, ``failed_batches`` among them, ``operations`` in
    them (reserves counted when they came), and what waits now."""

    batches: int
    failed_batches: int
    operations: int
    waiting: int
    parked: int


class Committer:
    """Applies operations for as long as :meth:`run` runs."""

    def __init__(
        self,
        store: Store,
        engine: Engine,
        clock: BrokerClock,
        *,
        threaded: bool,
        observer: Observer | None = None,
    ) -> None:
        self._store = store
        self._engine = engine
        self._clock = clock
        self._observer = observer
        if observer is not None:
            engine.changes = []
        self._thread = trio.CapacityLimiter(1) if threaded else None
        self._operations: list[Operation] = []
        self._reserves: list[Reserve] = []
        self._numbers = count()
        self._alarm = trio.Event()
        # While a batch runs in its thread, the parked reserves are its own: those whose callers
        # leave meanwhile are noted and taken out afterwards.
        self._parked = ParkedReserves()
        self._busy = False
        self._left: list[Reserve] = []
        self._draining = False
        self._stopping = False
        self._stopped = False
        self._sweep_not_before = -math.inf
        self._batches = self._failed = self._applied = 0
        self._trouble = _Trouble()

    # ---- For callers, on the loop ----

    async def submit(self, apply: Callable[[int], T]) -> T:
        """Apply an operation, given the time; returns what it returned, once it is committed.

        A checkpoint. A cancel before its batch leaves it undone; later it is done all the same.

        :raises GRPCError: what the operation raised, or INTERNAL if the store failed.
        """
        result: T = await self._submit(Operation(apply))
        return result

    async def take(self, take: Callable[[int], tuple[T, int]], taker: Taker) -> T | None:
        """Like :meth:`submit`, for what may be large: ``take`` is told how large, and returns
        with the result how large it is. ``None``: nothing was done, for the peer has to take its
        earlier answers first."""
        result: T | None = await self._submit(Taking(take, taker))
        return result

    async def _submit(self, operation: Operation) -> Any:
        self._accept()
        self._operations.append(operation)
        self._alarm.set()
        operation.task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            operation.gone = True
            return trio.lowlevel.Abort.SUCCEEDED

        return await trio.lowlevel.wait_task_rescheduled(abort)

    async def reserve(self, plan: ReservePlan, taker: Taker, deadline: float) -> list[Lease] | None:
        """Lease jobs, waiting for them until the deadline if the plan says so; empty if there
        were none in time. ``None``: the peer has to take its earlier answers first.

        A checkpoint. A cancel leases nothing. No checkpoint lies between the lease and the
        return: from then on the caller answers for what it got, see :meth:`give_back`.

        :raises GRPCError: INTERNAL if the store failed.
        """
        reserve = Reserve(plan, taker, next(self._numbers), deadline)
        self._accept()
        self._reserves.append(reserve)
        self._alarm.set()
        reserve.task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            reserve.gone = True
            if self._busy:
                self._left.append(reserve)
            else:
                self._parked.discard(reserve)
            return trio.lowlevel.Abort.SUCCEEDED

        with reserve.scope:
            leases: list[Lease] | None = await trio.lowlevel.wait_task_rescheduled(abort)
            return leases
        return []

    def give_back(self, leases: Sequence[Lease]) -> None:
        """Make jobs ready again that were leased to somebody who never got them."""
        if leases and not self._stopped:
            self._operations.append(Operation(lambda now: self._engine.give_back(leases, now)))
            self._alarm.set()

    def start_drain(self) -> None:
        """From now on a reserve takes what is there and never waits; parked ones get nothing."""
        self._draining = True
        self.send_home()

    def send_home(self) -> None:
        """Answer the reserves that wait now, with nothing; not those of a batch in its thread."""
        if not self._busy:
            self._send_home()

    def stop(self) -> None:
        """Let :meth:`run` end when everything that waits has been applied."""
        self._stopping = True
        self._alarm.set()

    def statistics(self) -> CommitterStatistics:
        """What it has done, and what waits."""
        return CommitterStatistics(
            batches=self._batches,
            failed_batches=self._failed,
            operations=self._applied,
            waiting=len(self._operations) + len(self._reserves),
            parked=len(self._parked),
        )

    def _accept(self) -> None:
        if self._stopped:
            raise GRPCError(Status.INTERNAL, "the broker is closed")

    # ---- The loop ----

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Apply batches until :meth:`stop`. A cancel lets the batch that runs end first."""
        try:
            while await self._work():
                batch = self._next_batch()
                if self._thread is None:
                    self._apply(batch)
                else:
                    self._busy = True
                    try:
                        await trio.to_thread.run_sync(self._apply, batch, limiter=self._thread)
                    finally:
                        self._busy = False
                self._finish(batch)
        finally:
            self._stopped = True

    async def _work(self) -> bool:
        """Wait until there is something to do; ``False`` when there never will be."""
        while not self._operations and not self._reserves:
            if self._stopping:
                return False
            self._alarm = trio.Event()
            sweep_at = self._clock.trio_time(self._engine.due_at)
            with trio.move_on_at(max(sweep_at, self._sweep_not_before)):
                await self._alarm.wait()
                continue
            if self._engine.due_at <= self._clock.now_ms():
                return True
        await trio.lowlevel.checkpoint()
        return True

    def _next_batch(self) -> Batch:
        batch = Batch(
            self._clock.now_ms(),
            self._operations[:_OPERATIONS_AT_ONCE],
            self._reserves[:_OPERATIONS_AT_ONCE],
        )
        del self._operations[:_OPERATIONS_AT_ONCE]
        del self._reserves[:_OPERATIONS_AT_ONCE]
        return batch

    # ---- One batch: in the thread, if there is one ----

    def _apply(self, batch: Batch) -> None:
        engine = self._engine
        due_at = engine.due_at
        try:
            with self._store.transaction():
                if due_at <= batch.now:
                    engine.sweep(batch.now)
                for operation in batch.operations:
                    if not operation.gone:
                        operation.run(batch)
                self._serve(batch)
        except Exception as error:
            engine.due_at = due_at
            batch.error = _failure(error)
            if engine.changes is not None:
                engine.changes.clear()
        engine.woken.clear()

    def _serve(self, batch: Batch) -> None:
        """Give what is ready to the reserves, in the order in which they came."""
        engine = self._engine
        woken = engine.woken
        for reserve in self._parked.in_turn(tuple(woken)) if woken else ():
            if reserve.gone or woken.isdisjoint(reserve.plan.queues):
                continue
            if self._lease(batch, reserve) == []:
                # It has seen all its queues empty; so would those behind it.
                woken.difference_update(reserve.plan.queues)
                if not woken:
                    break
        for reserve in batch.reserves:
            if not reserve.gone:
                self._lease(batch, reserve)

    def _lease(self, batch: Batch, reserve: Reserve) -> list[Lease] | None:
        size = batch.promises.allowance(reserve.taker)
        if not size:
            batch.crowded.append(reserve)
            return None
        leases = self._engine.reserve(reserve.plan, batch.now, size)
        if leases:
            batch.promises.add(reserve.taker, size_of(leases))
            batch.served.append((reserve, leases))
        return leases

    # ---- After the batch, on the loop ----

    def _finish(self, batch: Batch) -> None:
        self._batches += 1
        self._applied += len(batch.operations) + len(batch.reserves)
        if batch.error is None:
            self._trouble.over()
            if self._observer is not None and self._engine.changes:
                changes, self._engine.changes = self._engine.changes, []
                self._observer(changes, batch.now, self._clock)
            self._answer(batch)
        else:
            self._failed += 1
            self._trouble.tell(batch.error)
            self._sweep_not_before = trio.current_time() + _RETRY_SWEEP
            self._answer_failed(batch, batch.error)
        for reserve in self._left:
            self._parked.discard(reserve)
        self._left.clear()
        if self._draining:
            self._send_home()

    def _answer(self, batch: Batch) -> None:
        for operation in batch.operations:
            operation.deliver()
        for reserve, leases in batch.served:
            self._parked.discard(reserve)
            if reserve.gone:
                self.give_back(leases)
            else:
                reserve.taker.hold(size_of(leases))
                self._answer_reserve(reserve, outcome.Value(leases))
        for reserve in batch.crowded:
            self._parked.discard(reserve)
            if not reserve.gone:
                self._answer_reserve(reserve, outcome.Value(None))
        for reserve in batch.reserves:
            if reserve.gone:
                continue
            if reserve.plan.wait_ms:
                self._parked.add(reserve)
                reserve.scope.deadline = reserve.deadline
            else:
                self._answer_reserve(reserve, outcome.Value([]))

    def _answer_failed(self, batch: Batch, error: GRPCError) -> None:
        for operation in batch.operations:
            if operation.task is not None and not operation.gone:
                trio.lowlevel.reschedule(operation.task, _error(error))
        # Parked ones wait on: for them nothing has happened.
        for reserve in batch.reserves:
            if not reserve.gone:
                self._answer_reserve(reserve, _error(error))

    def _answer_reserve(
        self, reserve: Reserve, answer: outcome.Outcome[list[Lease] | None]
    ) -> None:
        assert reserve.task is not None
        reserve.gone = True
        trio.lowlevel.reschedule(reserve.task, answer)

    def _send_home(self) -> None:
        for reserve in self._parked.clear():
            self._answer_reserve(reserve, outcome.Value([]))


def _error(error: GRPCError) -> outcome.Error:
    # One for each caller: a raised exception carries its traceback.
    return outcome.Error(GRPCError(error.status, error.message))


def _failure(error: Exception) -> GRPCError:
    """What the callers of a batch that was rolled back are told."""
    if isinstance(error, sqlite3.Error):
        return GRPCError(Status.INTERNAL, f"storage failed: {in_words(error)}")
    log.error("a fault of the broker", exc_info=error)
    return GRPCError(Status.INTERNAL, "internal error")


class _Trouble:
    """Says that batches fail, and that they no longer do, without filling the disk with it."""

    def __init__(self) -> None:
        self._last: str | None = None
        self._told = -math.inf

    def tell(self, error: GRPCError) -> None:
        now = trio.current_time()
        if error.message != self._last or now >= self._told + _TELL_AGAIN:
            log.error("a batch was rolled back: %s", error.message)
            self._last, self._told = error.message, now

    def over(self) -> None:
        if self._last is not None:
            log.warning("batches are committed again")
            self._last = None
