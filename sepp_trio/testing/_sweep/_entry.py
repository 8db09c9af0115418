"""``cancellation_sweep``: what users call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Unpack, get_args

from sepp_trio.broker import BrokerConfig
from sepp_trio.types import Duration, EnqueueRequest, Payload
from sepp_trio.types._checks import integer, seconds
from sepp_trio.worker import Handler

from .._in_trio import check_in_trio
from .._job_fields import JobFields, check_job_fields, check_kind
from .._recording import RecordingBroker
from ._delivery import Swept
from ._loop import Invariant, Setup, Sweep
from ._report import Cause, SweepFailure, SweepReport
from ._stage import open_stage

_MORE_ATTEMPTS: Final = 10
"""Deliveries that are not cancelled, until a job is given up."""


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
    broker: RecordingBroker | None = None,
    limit: Duration | None = None,
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
            ``"takeover"``: so it does, and another worker has the job at once, beside what the
            cancelled handler still does, as in a shielded cleanup; the invariant is asked when
            both have ended.
            ``"shutdown"``: the worker is stopped by force and gives the job back, another one
            gets it. ``"timeout"``: the handler's timeout strikes. ``"drain"``: the worker begins
            to stop; the handler is not cancelled, but sees ``ctx.stopping``, and must not let
            the job be acked half done. Several are swept one after the other.
        cancels: How many deliveries of one history are cancelled at most, at all combinations
            of their checkpoints; in one history all for the same cause.
        max_histories: Upper bound; a level that has more is covered evenly, and the report
            says how many were left out.
        lease_duration, auto_extend, handler_timeout: As for ``Worker``. A cancelled handler has
            to end before its lease does; ``lease_duration`` seconds after it has lost it.
        config: The broker's settings: limits and retry policies.
        broker: Play on this one instead, for a handler that itself uses a client of
            ``broker.open_client()``, as to enqueue follow-up jobs, to other queues than its own.
            Before each history, and before ``setup``, all of its jobs are removed, dead letters
            and idempotency keys included; at first it must have none that are not done.
        limit: Seconds on Trio's clock in which a delivery that nobody cancels has to end, and
            each call of ``invariant`` and ``setup``. If not given, an hour; for later histories
            a minute, and ten times as long as the first. A ``MockClock`` that stands still for
            half a minute of real time, since something spins, ends them as well.
        job: Fields of ``EnqueueRequest``; ``max_attempts`` is high enough if not given.

    Raises:
        SweepFailure: what was found, in the shortest history; the invariant's exception is its
            cause. Also if the handler takes another way when it runs again.
        TypeError, ValueError: an argument is wrong; names it.
        RuntimeError: this is no run of Trio.
        SystemExit, KeyboardInterrupt: the handler raised it.

    A checkpoint. A cancel from outside ends the sweep: the handler is cancelled like that of a
    worker that is cancelled.
    """
    check_in_trio("cancellation_sweep")
    causes = _causes(by)
    for function, field in ((invariant, "invariant"), (setup, "setup")):
        if function is not None and not callable(function):
            raise TypeError(f"{field} must be a function, not {type(function).__name__}")
    integer(cancels, "cancels", 1)
    integer(max_histories, "max_histories", 1)
    within = None if limit is None else seconds(limit, "limit")
    check_kind(config, "config", BrokerConfig)
    check_kind(broker, "broker", RecordingBroker)
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
        broker=broker,
    ) as stage:
        sweep = Sweep(stage, invariant, setup, cancels, within)
        try:
            return await sweep.run(causes, max_histories)
        except SweepFailure as failure:
            failure.__traceback__ = None  # our own frames say nothing
            raise


def _causes(by: Any) -> tuple[Cause, ...]:
    several = isinstance(by, Iterable) and not isinstance(by, str)
    causes: tuple[Any, ...] = tuple(by) if several else (by,)
    known = get_args(Cause)
    if not causes or any(cause not in known for cause in causes):
        raise ValueError(f"by must be one or several of {', '.join(map(repr, known))}, not {by!r}")
    return tuple(dict.fromkeys(causes))


def _request(payload: Payload | None, job: JobFields, cancels: int) -> EnqueueRequest:
    check_job_fields(cancellation_sweep, job)
    fields: dict[str, Any] = {"queue": "test", "job_type": "test", **job}
    if fields.get("max_attempts") is None:
        fields["max_attempts"] = cancels + _MORE_ATTEMPTS
    request = EnqueueRequest(fields.pop("queue"), fields.pop("job_type"), payload, **fields)
    assert request.max_attempts is not None
    if request.max_attempts <= cancels:
        raise ValueError(
            f"max_attempts ({request.max_attempts}) must be more than cancels ({cancels}):"
            " each cancelled delivery takes one, and the job is to be done in the end"
        )
    return request
