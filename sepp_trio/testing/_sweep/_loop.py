"""All histories, the short ones first."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final, NoReturn, TypeAlias

import trio

from sepp_trio.types import DeadLetterCause

from .._said import refuse_function
from .._standstill import Backstop
from .._stuck import break_shields
from ._aftermath import Fault
from ._delivery import Delivery
from ._level import Cancels, Level
from ._report import (
    Cause,
    Checkpoint,
    Ending,
    Line,
    SweepFailure,
    SweepReport,
    SweepRun,
    SweptDelivery,
    first_line,
)
from ._stage import Stage

logger = logging.getLogger("sepp_trio.testing")

Invariant: TypeAlias = Callable[[SweepRun], object]
Setup: TypeAlias = Callable[[], object]

_TRIES: Final = 3
"""Runs of a history whose checkpoint is not where it was."""

_FIRST_LIMIT: Final = 3600.0
"""Seconds for the first undisturbed run, and for a call of setup or the invariant."""

_LIMIT: Final = 60.0
_TIMES: Final = 10
"""For other runs so many seconds, and so many times as long as the first."""

_MERCY: Final = 1.0
_FORCES: Final = 5


class Strayed(Exception):
    """The checkpoint of a history was not where it had been."""

    def __init__(self, expected: Checkpoint, found: Line | None) -> None:
        self.expected = expected
        self.found = found


class Sweep:
    """One run through all histories of a handler.

    Args:
        stage: Where they are played.
        invariant, setup, cancels, limit: As for :func:`cancellation_sweep`.
    """

    def __init__(
        self,
        stage: Stage,
        invariant: Invariant | None,
        setup: Setup | None,
        cancels: int,
        limit: float | None,
    ) -> None:
        self._stage = stage
        self._invariant = invariant
        self._setup = setup
        self._cancels = cancels
        self._limit = _FIRST_LIMIT if limit is None else limit
        self._own_limit = limit is None
        self._backstop = Backstop()
        stage.one_by_one = inspect.iscoroutinefunction(invariant)
        self._end: Ending = "acked"
        self._histories = self._deliveries = self._skipped = 0

    async def run(self, causes: tuple[Cause, ...], most: int) -> SweepReport:
        """Go through all histories, those with few cancels first."""
        with self._backstop.watching():
            return await self._run(causes, most)

    async def _run(self, causes: tuple[Cause, ...], most: int) -> SweepReport:
        first = await self._history(causes[0], Cancels())
        if self._own_limit:
            self._limit = _LIMIT + _TIMES * max(delivery.duration for delivery in first)
        self._end = await self._stage.outcome(first[-1].attempt)
        levels = {cause: Level() for cause in causes}
        for level in levels.values():
            level.add(Cancels(), first)
        for depth in range(1, self._cancels + 1):
            deeper = {cause: Level() for cause in causes}
            for done, cause in enumerate(causes):
                room = max(0, (most - self._histories) // (len(causes) - done))
                self._skipped += max(0, len(levels[cause]) - room)
                for cancels in levels[cause].spread(room):
                    deliveries = await self._steadily(cause, cancels)
                    if depth < self._cancels:
                        deeper[cause].add(cancels, deliveries)
            levels = deeper
        return SweepReport(
            causes,
            self._cancels,
            tuple(point for delivery in first for point in delivery.checkpoints or ()),
            self._histories,
            self._skipped,
            self._deliveries,
        )

    async def _steadily(self, cause: Cause, cancels: Cancels) -> list[Delivery]:
        for _ in range(_TRIES):
            try:
                return await self._history(cause, cancels)
            except Strayed as error:
                strayed = error
        raise SweepFailure(
            "the handler takes another way when it runs again: at"
            f" {strayed.expected} it was at {strayed.expected.line}, and then "
            + ("had ended before" if strayed.found is None else f"at {strayed.found}"),
            (),
            strayed.expected.line,
            "A sweep needs a handler that does the same in the same world: use setup to make the"
            " world new, seed what is random, use a MockClock.",
        )

    # ---- one history ----

    async def _history(self, cause: Cause, cancels: Cancels) -> list[Delivery]:
        """A job from its first delivery to its end.

        Raises:
            SweepFailure: something is wrong.
            Strayed: a checkpoint was not where it had been; nothing else was wrong.
        """
        stage = self._stage
        await stage.empty()
        if self._setup is not None:
            result = self._setup()
            if inspect.isawaitable(result):
                result = await self._in_time(result, "setup", ())
            refuse_function(result, "setup")
        await stage.enqueue()
        self._histories += 1
        deliveries: list[Delivery] = []
        told: list[SweptDelivery] = []
        strayed: Strayed | None = None
        while True:
            checkpoint = cancels.of(len(deliveries) + 1)
            delivery = Delivery(
                stage.swept,
                cause,
                checkpoint,
                stage.strike,
                record=len(deliveries) >= cancels.last and len(cancels.at) < self._cancels,
                limit=self._limit,
            )
            deliveries.append(delivery)
            self._deliveries += 1
            stage.expect(delivery)
            told.append(await self._delivered(delivery, told))
            if checkpoint is not None and _strayed(checkpoint, delivery.struck):
                strayed = Strayed(checkpoint, delivery.struck)
            if not delivery.over.is_set():
                stage.take_over()
                continue
            for place, earlier in enumerate(deliveries[:-1]):
                if told[place].outcome == "not over":
                    told[place] = await self._ended(earlier, told[:place])
                    self._judge_fault(earlier, told[: place + 1])
            await self._judge(delivery, told)
            if told[-1].outcome != "delivered again":
                break
        self._judge_end(deliveries[-1], told)
        if strayed is not None:
            raise strayed
        return deliveries

    async def _delivered(self, delivery: Delivery, told: list[SweptDelivery]) -> SweptDelivery:
        """Wait until the handler has ended and the broker knows; or, if another worker takes
        over, until it is to be waited for no more."""
        stage = self._stage
        with stage.waiting():
            with delivery.watch as self._backstop.scope:
                await delivery.lingers.wait()
            if delivery.failure is not None:
                raise delivery.failure
            if not delivery.lingers.is_set():
                await self._stuck(delivery, told)
            if not delivery.over.is_set():
                return _told(delivery, "not over")
            return _told(delivery, await stage.outcome(delivery.attempt))
        raise self._crashed(delivery, told)

    async def _ended(self, delivery: Delivery, told: list[SweptDelivery]) -> SweptDelivery:
        """Wait for the end of a handler whose job another worker has had meanwhile."""
        with self._stage.waiting():
            with trio.move_on_at(delivery.watch.deadline) as self._backstop.scope:
                await delivery.over.wait()
            if delivery.failure is not None:
                raise delivery.failure
            if not delivery.over.is_set():
                await self._stuck(delivery, told)
            return _told(delivery, await self._stage.outcome(delivery.attempt))
        raise self._crashed(delivery, told)

    def _crashed(self, delivery: Delivery, told: list[SweptDelivery]) -> BaseException:
        if delivery.fault is not None:
            return _failure(delivery.fault, [*told, _told(delivery, "not over")])
        assert self._stage.crash is not None
        return self._stage.crash

    async def _stuck(self, delivery: Delivery, told: list[SweptDelivery]) -> NoReturn:
        place = delivery.stuck_at()
        if delivery.fault is not None:
            fault = delivery.fault
        elif delivery.aftermath is None:
            fault = Fault(
                "the handler does not end, and nobody cancels it",
                place.line,
                f"It waits in {place.awaits or 'that line'}: what comes then in an undisturbed run"
                " may be what an earlier delivery has left undone.",
            )
        else:
            fault = Fault(
                "the handler outlives its lease: it does not end after its cancel",
                place.line,
                f"It still waits in {place.awaits or 'that line'}.",
            )
        history = [*told, _told(delivery, "not over")]
        for _ in range(_FORCES):
            delivery.force(fault)
            with trio.move_on_after(_MERCY) as self._backstop.scope:
                await delivery.over.wait()
                break
        else:
            # What follows may wait for ever, as for a thread.
            logger.error("the handler cannot be ended\n%s", _failure(fault, history))
        raise _failure(fault, history)

    def _judge_fault(self, delivery: Delivery, told: list[SweptDelivery]) -> None:
        if delivery.fault is not None:
            raise _failure(delivery.fault, told)

    async def _judge(self, delivery: Delivery, told: list[SweptDelivery]) -> None:
        self._judge_fault(delivery, told)
        if delivery.struck is None and delivery.cancel_reason is not None:
            error = delivery.error
            raise SweepFailure(
                f"delivery {delivery.attempt} was cancelled by the worker, not by the sweep:"
                f" {delivery.cancel_reason} after {delivery.duration:g} s",
                told,
                None if error is None else self._stage.swept.own.innermost(error),
                "A longer lease_duration, auto_extend or a longer handler_timeout gives it time.",
            )
        if self._invariant is None:
            return
        run = SweepRun(tuple(told))
        try:
            result = self._invariant(run)
            if inspect.isawaitable(result):
                self._stage.one_by_one = True  # for it may take its time
                result = await self._in_time(result, "the invariant", told)
            refuse_function(result, "the invariant")
            if result is False:  # else a forgotten assert would pass for ever
                raise AssertionError("it returned False (it is meant to assert)")
        except SweepFailure:
            raise
        except Exception as error:
            raise SweepFailure(
                f"the invariant does not hold after delivery {run.attempt}:"
                f" {type(error).__name__}: {first_line(error)}",
                told,
                None,
            ) from error
        except BaseException as error:
            if not isinstance(error, (trio.Cancelled, KeyboardInterrupt, SystemExit)):
                error.add_note(f"The history:\n{run}")  # pytest.fail, for one
            raise

    async def _in_time(
        self, awaitable: Awaitable[object], name: str, told: Sequence[SweptDelivery]
    ) -> object:
        """What the user's own async function returns, which has to end within the limit, too;
        shields do not keep it."""
        line: Line | None = None
        over = trio.Event()
        self._backstop.task = trio.lowlevel.current_task()
        with trio.move_on_after(_FIRST_LIMIT if self._own_limit else self._limit) as scope:
            self._backstop.scope = scope
            self._stage.start_soon(_break_out, self._backstop.task, scope, over)
            try:
                return await awaitable
            except BaseException as error:
                line = self._stage.swept.own.innermost(error)
                raise
            finally:
                self._backstop.task = None
                over.set()
        raise SweepFailure(f"{name} does not end", told, line)

    def _judge_end(self, last: Delivery, told: list[SweptDelivery]) -> None:
        end, job = told[-1].outcome, self._stage.job
        was_rejected = job.cause is DeadLetterCause.REJECTED
        if end == self._end or (self._histories == 1 and was_rejected):
            return
        line = None if last.error is None else self._stage.swept.own.innermost(last.error)
        if end == "acked":
            problem = "the job was acked, which it is not in an undisturbed run"
        else:
            why = f": {job.nack_reasons[-1]}" if job.nack_reasons else ""
            problem = f"the job was given up after {len(told)} deliveries{why}"
        raise SweepFailure(problem, told, line) from last.error


async def _break_out(task: trio.lowlevel.Task, scope: trio.CancelScope, over: trio.Event) -> None:
    """Once the scope's deadline has come, let its cancel reach what is shielded."""
    with trio.move_on_at(scope.deadline):
        await over.wait()
    while not over.is_set():
        break_shields(task, scope)
        with trio.move_on_after(_MERCY):
            await over.wait()


def _strayed(checkpoint: Checkpoint, struck: Line | None) -> bool:
    return struck != checkpoint.line


def _told(delivery: Delivery, outcome: Ending) -> SweptDelivery:
    checkpoint, struck = delivery.checkpoint, delivery.struck
    if checkpoint is not None:
        checkpoint = None if struck is None else replace(checkpoint, line=struck)
    raised = () if delivery.aftermath is None else delivery.aftermath.lines()
    return SweptDelivery(
        delivery.attempt,
        None if checkpoint is None else delivery.cause,
        checkpoint,
        raised,
        delivery.error,
        outcome,
    )


def _failure(fault: Fault, told: list[SweptDelivery]) -> SweepFailure:
    failure = SweepFailure(fault.problem, told, fault.line, fault.advice)
    failure.__cause__ = told[-1].error
    return failure
