"""What a handler sees of its job."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio

from sepp_trio import (
    EnqueueRequest,
    HandlerError,
    JobCtx,
    Payload,
    TraceContext,
    open_client,
    wire,
)
from sepp_trio.testing import Acked, Recorder, Retried, open_fragile_server, run_handler
from sepp_trio.transport import Method
from sepp_trio.wire import records
from tests.worker.bench import Bench
from tests.worker.helpers import running, worker_on

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)


async def see(look: Callable[[JobCtx], None], **fields: Any) -> None:
    """Run ``look(ctx)`` in the handler of a job with these fields; its assertions come out."""

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        look(ctx)

    outcome = await run_handler(handler, **fields)
    if outcome.error is not None:
        raise outcome.error
    assert outcome == Acked()


async def test_all_of_a_job_can_be_read() -> None:
    def look(ctx: JobCtx) -> None:
        assert ctx.id
        assert (ctx.queue, ctx.job_type, ctx.priority) == ("emails", "t", 7)
        assert (ctx.attempt, ctx.max_attempts, ctx.is_last_attempt) == (2, 3, False)
        assert ctx.scheduled_at == NEW_YEAR
        assert ctx.custom == {"text": "", "number": -7, "flag": False}
        assert ctx.custom is ctx.custom
        assert ctx.trace_context == TraceContext(PARENT, "a=b")
        assert ctx.worker_id == "worker"
        assert 29 < ctx.remaining() <= 30
        assert ctx.lease_deadline == pytest.approx(trio.current_time() + ctx.remaining())
        assert ctx.cancel_reason is None
        assert not ctx.stopping
        assert repr(ctx) == f"<JobCtx of job {ctx.id} (t, attempt 2/3)>"

    await see(
        look,
        queue="emails",
        job_type="t",
        priority=7,
        attempt=2,
        scheduled_at=NEW_YEAR,
        custom={"text": "", "number": -7, "flag": False},
        trace_context=TraceContext(PARENT, "a=b"),
    )


async def test_times_are_those_of_the_servers_clock() -> None:
    seen: list[datetime] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        seen.extend([ctx.enqueued_at, ctx.lease_expires_at])

    recorder = Recorder()
    epoch_ms = int(NEW_YEAR.timestamp() * 1000) + 500
    async with (
        open_fragile_server(epoch_ms=epoch_ms, recorder=recorder) as server,
        open_client(server.connect) as client,
    ):
        worker = worker_on(client)
        worker.handle("t", handler)
        async with running(worker):
            await client.enqueue(EnqueueRequest("emails", "t"))
            await recorder.settled()
    enqueued = NEW_YEAR + timedelta(milliseconds=500)
    assert seen == [enqueued, enqueued + timedelta(seconds=30)]


async def test_what_a_job_does_not_have_is_none() -> None:
    def look(ctx: JobCtx) -> None:
        assert ctx.scheduled_at is None
        assert ctx.trace_context is None
        assert ctx.custom == {}

    await see(look)


async def test_what_cannot_be_read_of_trace_and_schedule_is_none(bench: Bench) -> None:
    """The server hands out what it was given, by a producer that is not as careful as ours."""
    seen: list[object] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        seen.extend([ctx.scheduled_at, ctx.trace_context])

    job = records.EnqueueRequest(
        "emails",
        "t",
        scheduled_at=(-(2**62), 0),
        trace_context=records.TraceContext("no trace"),
    )
    route = bench.client._methods.enqueue_batch.route
    careless = Method(route, wire.encode, wire.decoder_of(records.EnqueueBatchResponse))
    await bench.client._channel.unary(careless, records.EnqueueBatchRequest([job]), timeout=1)
    async with bench.running(handler):
        await bench.settled()
    assert seen == [None, None]
    assert bench.jobs().acked


async def test_a_handler_sees_its_lease_in_the_effective_deadline() -> None:
    def look(ctx: JobCtx) -> None:
        assert 29.5 < trio.current_effective_deadline() - trio.current_time() < 30

    await see(look)


colour = ContextVar("colour", default="none")


async def test_a_handler_sees_the_context_variables_of_run_and_keeps_its_own(bench: Bench) -> None:
    seen: list[str] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        seen.append(colour.get())
        colour.set("green")
        await trio.lowlevel.checkpoint()

    worker = bench.worker(max_in_flight=1)
    worker.handle("t", handler)

    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        colour.set("red")
        await worker.run(task_status=task_status)

    async with trio.open_nursery() as nursery:
        await nursery.start(run)
        await bench.put("t", "t", "t")
        await bench.settled()
        worker.shutdown()
    assert seen == ["red"] * 3


async def test_a_context_outlives_its_job_but_not_its_lease() -> None:
    kept: list[JobCtx] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        kept.append(ctx)
        raise HandlerError.retry_after("once more", 1)

    assert await run_handler(handler, job_type="t") == Retried(1, "once more")
    [ctx] = kept
    assert ctx.job_type == "t"
    with pytest.raises(Exception, match="acked or nacked"):
        await ctx.extend(30)
    await trio.sleep(60)
    assert ctx.remaining() == 0
