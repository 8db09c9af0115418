"""``cancellation_sweep``: all histories, the short ones first."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias, Unpack, get_args

import trio

from sepp_trio.broker import BrokerConfig
from sepp_trio.types import Duration, EnqueueRequest, Payload
from sepp_trio.types._checks import integer, seconds
from sepp_trio.worker import Handler

from .._run_handler import JobFields
from ._aftermath import Fault
from ._delivery import Delivery, Swept
from ._report import (
    Cause,
    Checkpoint,
    Line,
    SweepFailure,
    SweepReport,
    SweepRun,
    SweptDelivery,
)
from ._stage import Stage, State, open_stage

Invariant: TypeAlias = Callable[[SweepRun], object]
Setup: TypeAlias = Callable[[], object]

_TRIES: Final = 3
"""Runs of a history whose checkpoint is not where it was."""

_MORE_ATTEMPTS: Final = 10
"""Deliveries that are not cancelled, until a job is given up."""

_FIRST_LIMIT: Final = 3600.0
_LIMIT: Final = 60.0
_TIMES: Final = 10
"""Seconds for the first undisturbed run; for others so many, and so many times as long."""

_MERCY: Final = 1.0
_FORCES: Final = 5


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


class Strayed(Exception):
    """The checkpoint of a history was not where it had been."""

    def __init__(self, expected: Checkpoint, found: Line | None) -> None:
        self.expected = expected
        self.found = found


async def cancellation_sweep(
    handler: Handler,
    payload: Payload | None = None,
    *,
    invariant: Invariant | None = None,
    setup: Setup | None = None,
    by: Cause | Sequence[Cause] = "lease lost",
    cancels: int = 1,
    max_histories: int = 10_000,
    lease_duration: Duration = 30.0,
    auto_extend: bool = False,
    handler_timeout: Duration | None = None,
    config: BrokerConfig | None = None,
    **job: Unpack[JobFields],
) -> SweepReport:
    """Cancel the handler at each of its checkpoints, let it be delivered again, and see whether
    all is well in the end.

    Runs one undisturbed history first, to learn the checkpoints: every moment at which a cancel
    can reach the handler, in its own task, in tasks of its nurseries and in its threads. Then
    one history for each: a new job, cancelled there and delivered again until it is done. Broker,
    client and worker are real, in memory; tasks of the handler take turns in a fixed order.

    Finds by itself, without an invariant: a cancel that is swallowed, a shielded section of the
    user's own code without a deadline, a handler that outlives its lease, a job that is never
    done after a cancel.

    Args:
        handler: An async function, or a plain one, which runs in a thread. One for all
            histories: it finds its world in its closure.
        payload: The job's payload.
        invariant: Called with a ``SweepRun`` after each delivery, when the broker knows what
            became of it; its exception is the failure. Sync or async.
        setup: Makes the world new before each history. Sync or async.
        by: ``"lease lost"``: the broker takes the lease away and the worker learns of it.
            ``"shutdown"``: the worker is stopped by force and gives the job back, another one
            gets it. ``"timeout"``: the handler's timeout strikes. ``"drain"``: the worker begins
            to stop; the handler is not cancelled, but sees ``ctx.stopping``, and must not let
            the job be acked half done. Several are swept one after the other.
        cancels: How many deliveries of one history are cancelled at most, at all combinations
            of their checkpoints.
        max_histories: Upper bound; a level that has more is covered evenly, and the report
            says how many were left out.
        lease_duration, auto_extend, handler_timeout: As for ``Worker``. A handler that is
            cancelled has ``lease_duration`` seconds to end.
        config: The broker's settings: limits and retry policies.
        job: Fields of ``EnqueueRequest``; ``max_attempts`` is high enough if not given.

    Raises:
        SweepFailure: what was found, in the shortest history; the invariant's exception is its
            cause. Also if the handler takes another way when it runs again.
        TypeError, ValueError: an argument is wrong; names it.
        SystemExit, KeyboardInterrupt: the handler raised it.

    A checkpoint. A cancel from outside ends the sweep: the handler is cancelled like that of a
    worker that is cancelled.
    """
    causes = _causes(by)
    integer(cancels, "cancels", 1)
    integer(max_histories, "max_histories", 1)
    request = _request(payload, job, cancels)
    swept = Swept(handler)
    async with open_stage(
        swept,
        request,
        lease_duration=seconds(lease_duration, "lease_duration"),
        auto_extend=auto_extend,
        handler_timeout=None
        if handler_timeout is None
        else seconds(handler_timeout, "handler_timeout"),
        causes=causes,
        config=config,
    ) as stage:
        sweep = _Sweep(stage, invariant, setup, cancels)
        return await sweep.run(causes, max_histories)


class _Sweep:
    def __init__(
        self,
        stage: Stage,
        invariant: Invariant | None,
        setup: Setup | None,
        cancels: int,
    ) -> None:
        self._stage = stage
        self._invariant = invariant
        self._setup = setup
        self._cancels = cancels
        self._limit = _FIRST_LIMIT
        stage.one_by_one = inspect.iscoroutinefunction(invariant)
        self._end: State = "acked"
        self._histories = self._deliveries = self._skipped = 0

    async def run(self, causes: tuple[Cause, ...], most: int) -> SweepReport:
        """Go through all histories."""
        first = await self._history(causes[0], Cancels())
        self._limit = _LIMIT + _TIMES * max(delivery.duration for delivery in first)
        self._end = await self._stage.story.outcome(first[-1].attempt)
        found = list(_children(Cancels(), first))
        levels = dict.fromkeys(causes, found)
        for depth in range(1, self._cancels + 1):
            deeper: dict[Cause, list[Cancels]] = {}
            for cause in causes:
                deeper[cause] = []
                level = self._chosen(levels[cause], most, len(causes))
                for cancels in level:
                    deliveries = await self._steadily(cause, cancels)
                    if depth < self._cancels:
                        deeper[cause] += _children(cancels, deliveries)
            levels = deeper
        checkpoints = [point for delivery in first for point in delivery.checkpoints or ()]
        return SweepReport(
            causes,
            self._cancels,
            tuple(checkpoints),
            self._histories,
            self._skipped,
            self._deliveries,
        )

    def _chosen(self, level: list[Cancels], most: int, causes: int) -> Sequence[Cancels]:
        room = max(0, (most - self._histories) // causes)
        if len(level) <= room:
            return level
        self._skipped += len(level) - room
        return [level[len(level) * place // room] for place in range(room)]

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
        if self._setup is not None:
            result = self._setup()
            if inspect.isawaitable(result):
                await result
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
            await self._judge(delivery, told)
            if told[-1].outcome != "delivered again":
                break
        self._judge_end(deliveries[-1], told)
        if strayed is not None:
            raise strayed
        return deliveries

    async def _delivered(self, delivery: Delivery, told: list[SweptDelivery]) -> SweptDelivery:
        """Wait until the handler has ended and the broker knows."""
        stage = self._stage
        with trio.CancelScope() as stage.waiting:
            with delivery.watch:
                await delivery.over.wait()
            if delivery.failure is not None:
                raise delivery.failure
            if not delivery.over.is_set():
                await self._stuck(delivery, told)
            return _told(delivery, await stage.story.outcome(delivery.attempt))
        if delivery.fault is not None:
            raise _failure(delivery.fault, [*told, _told(delivery, "not over")])
        assert stage.crash is not None
        raise stage.crash

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
            delivery.force()
            with trio.move_on_after(_MERCY):
                await delivery.over.wait()
                break
        raise _failure(fault, history)

    async def _judge(self, delivery: Delivery, told: list[SweptDelivery]) -> None:
        if delivery.fault is not None:
            raise _failure(delivery.fault, told)
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
                await result
        except Exception as error:
            raise SweepFailure(
                f"the invariant does not hold after delivery {run.attempt}:"
                f" {type(error).__name__}: {error}",
                told,
                None,
            ) from error

    def _judge_end(self, last: Delivery, told: list[SweptDelivery]) -> None:
        end, story = told[-1].outcome, self._stage.story
        if end == self._end or (self._histories == 1 and story.rejected):
            return
        line = None if last.error is None else self._stage.swept.own.innermost(last.error)
        if end == "acked":
            problem = "the job was acked, which it is not in an undisturbed run"
        else:
            why = f": {story.reason}" if story.reason else ""
            problem = f"the job was given up after {len(told)} deliveries{why}"
        raise SweepFailure(problem, told, line) from last.error


def _strayed(checkpoint: Checkpoint, struck: Line | None) -> bool:
    return struck != checkpoint.line


def _told(delivery: Delivery, outcome: State) -> SweptDelivery:
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


def _children(cancels: Cancels, deliveries: list[Delivery]) -> Iterator[Cancels]:
    for delivery in deliveries[cancels.last :]:
        for checkpoint in delivery.checkpoints or ():
            yield Cancels((*cancels.at, (delivery.attempt, checkpoint)))


def _causes(by: Cause | Sequence[Cause]) -> tuple[Cause, ...]:
    causes: tuple[Any, ...] = (by,) if isinstance(by, str) else tuple(by)
    known = get_args(Cause)
    if not causes or any(cause not in known for cause in causes):
        raise ValueError(f"by must be one or several of {', '.join(map(repr, known))}, not {by!r}")
    return tuple(dict.fromkeys(causes))


def _request(payload: Payload | None, job: JobFields, cancels: int) -> EnqueueRequest:
    unknown = job.keys() - JobFields.__annotations__.keys()
    if unknown:
        raise TypeError(
            f"cancellation_sweep has no argument {min(unknown)!r}, and EnqueueRequest has no such"
            f" field; its fields are {', '.join(sorted(JobFields.__annotations__))}"
        )
    fields: dict[str, Any] = {
        "queue": "test",
        "job_type": "test",
        "max_attempts": cancels + _MORE_ATTEMPTS,
        **job,
    }
    return EnqueueRequest(fields.pop("queue"), fields.pop("job_type"), payload, **fields)
