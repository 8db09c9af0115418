"""``run_handler``: one delivery of one job to one handler, and what became of it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple, Unpack

import trio

from sepp_trio.broker import BrokerConfig
from sepp_trio.client import SeppClient, open_client
from sepp_trio.client._open import Connect
from sepp_trio.types import (
    Duration,
    EnqueueRequest,
    Payload,
    ReserveOptions,
    RetryDirective,
)
from sepp_trio.types._checks import integer
from sepp_trio.worker import Handler, Worker
from sepp_trio.worker.registry import check_handler

from ._faults import FaultPlan
from ._hosted import hosted
from ._in_trio import check_in_trio
from ._job_fields import JobFields, check_job_fields, check_kind
from ._lasting import NO_KEEPALIVE, lasting
from ._limits import NO_LIMIT, limit_of
from ._observed import ObservedHandler
from ._outcomes import Outcome
from ._proxy import FaultProxy, ServerControls, open_fault_proxy
from ._quiet import quiet
from ._recorder import Recorder
from ._recording import RecordingBroker
from ._server import open_fragile_server
from ._threads import clock_waits_for_threads

_EARLIER_LEASE: Final = 30.0


async def run_handler(
    handler: Handler,
    payload: Payload | None = None,
    *,
    attempt: int = 1,
    lease_duration: Duration = 30.0,
    auto_extend: bool = False,
    handler_timeout: Duration | None = None,
    faults: FaultPlan | None = None,
    config: BrokerConfig | None = None,
    broker: RecordingBroker | None = None,
    limit: Duration | None = None,
    **job: Unpack[JobFields],
) -> Outcome:
    """Deliver one job to the handler, and see what becomes of it.

    Everything is real, in memory and on Trio's clock: the server, the client, the worker. On a
    ``MockClock`` that leaps when all tasks wait, hours pass in no time; it does not leap while
    a thread is at work. With faults, the package logs what the handler raised and nothing else.

    Args:
        handler: An async function, or a plain one, which runs in a thread.
        payload: The job's payload.
        attempt: Which delivery it is: the ones before were nacked.
        lease_duration, auto_extend, handler_timeout: As for ``Worker``.
        faults: What goes wrong between worker and server, and with the server; its clock starts
            when the job is ready for this delivery.
        config: The server's settings: limits and retry policies.
        broker: Deliver through this one instead, which must have no other job in the queue: for
            a handler that itself uses a client of ``broker.open_client()``, or whose traces are
            to be looked at.
        limit: Seconds on Trio's clock in which the delivery has to end. Without it an hour for
            an async handler on a ``MockClock``, else a minute. A ``MockClock`` that stands still
            for half a minute of real time, since the handler spins, ends it as well.
        job: Fields of ``EnqueueRequest``; queue and job type are ``"test"`` if not given.

    Returns:
        ``Acked``, ``Retried``, ``DeadLettered`` or ``LeaseLost``. With faults it may be a later
        delivery than ``attempt``: that of the first that reached the handler.

    Raises:
        TypeError, ValueError: an argument is wrong; names it and the limit.
        JobRejectedError: the server does not take the job.
        trio.TooSlowError: the delivery did not end within the limit; says where the handler
            stands. Shields do not keep it: it is cancelled all the same.
        RuntimeError: this is no run of Trio.
        SystemExit, KeyboardInterrupt: the handler raised it.

    A checkpoint. A cancel from outside cancels the handler as it cancels a worker, and nothing
    is left behind.
    """
    check_in_trio("run_handler")
    request = _request(payload, job)
    integer(attempt, "attempt", 1)
    check_kind(faults, "faults", FaultPlan)
    check_kind(config, "config", BrokerConfig)
    check_kind(broker, "broker", RecordingBroker)
    is_async = check_handler(handler)
    within = limit_of(limit, in_thread=not is_async)
    with clock_waits_for_threads():
        async with (
            _serving(config, broker, request.queue, quiet=faults is None) as server,
            hosted(open_client(server.connect, keepalive_interval=NO_KEEPALIVE)) as client,
        ):
            job_id = await _prepare(client, server.recorder, request, attempt)
            observed = ObservedHandler(handler, server.recorder, job_id)
            async with _faulty(faults, server, client) as (proxy, used):
                worker = Worker(
                    used,
                    [request.queue],
                    lease_duration,
                    auto_extend=auto_extend,
                    handler_timeout=handler_timeout,
                    max_in_flight=1,
                    worker_id="worker",
                )
                await observed.run_on(worker, within)
                return observed.outcome(() if proxy is None else tuple(proxy.happened))


def _request(payload: Payload | None, job: JobFields) -> EnqueueRequest:
    check_job_fields(run_handler, job)
    fields: dict[str, Any] = {"queue": "test", "job_type": "test", **job}
    return EnqueueRequest(fields.pop("queue"), fields.pop("job_type"), payload, **fields)


class _Server(NamedTuple):
    connect: Connect
    recorder: Recorder
    controls: ServerControls | None


@asynccontextmanager
async def _serving(
    config: BrokerConfig | None, broker: RecordingBroker | None, queue: str, *, quiet: bool
) -> AsyncIterator[_Server]:
    """The broker that was given, or a server of our own; ``quiet``, if no connection can die."""
    if broker is not None:
        if config is not None:
            raise ValueError("config is that of broker: give one of the two")
        others = broker.jobs(queue).where(lambda job: not job.is_done)
        if others:
            raise ValueError(f"broker must have no other job in queue {queue!r}, but has {others}")
        yield _Server(broker._connect, broker._recorder, None)
        return
    recorder = Recorder()
    config = config or BrokerConfig()
    if quiet:
        config = lasting(config)
    async with hosted(open_fragile_server(config, recorder=recorder)) as server:
        yield _Server(server.connect, recorder, server)


async def _prepare(
    client: SeppClient, recorder: Recorder, request: EnqueueRequest, attempt: int
) -> str:
    """Enqueue the job and use up the attempts before the one that is asked for; its id."""
    job_id = (await client.enqueue(request)).job_id
    most = recorder.job(job_id).max_attempts
    if attempt > most:
        raise ValueError(f"attempt must be at most the job's max_attempts ({most}), not {attempt}")
    await recorder.until(lambda _: recorder.job(job_id).state == "ready", limit=NO_LIMIT)
    for _ in range(1, attempt):
        options = ReserveOptions(
            [request.queue], _EARLIER_LEASE, wait_timeout=0, worker_id="earlier attempt"
        )
        [job] = await client.reserve(options)
        await client.nack(job, RetryDirective.after(0), "an earlier attempt")
    return job_id


@asynccontextmanager
async def _faulty(
    faults: FaultPlan | None, server: _Server, client: SeppClient
) -> AsyncIterator[tuple[FaultProxy | None, SeppClient]]:
    """A client that suffers from the plan, which starts now; without one, the client itself."""
    if faults is None:
        yield None, client
        return
    async with (
        hosted(open_fault_proxy(server.connect, server=server.controls)) as proxy,
        hosted(open_client(proxy.connect)) as used,
    ):
        proxy.inject(*faults.faults)
        with quiet(_says_nothing_of_handler):
            yield proxy, used


def _says_nothing_of_handler(record: logging.LogRecord) -> bool:
    """What a plan does to the worker is no news; what the handler raised is."""
    return not record.exc_info or isinstance(record.exc_info[1], trio.Cancelled)
