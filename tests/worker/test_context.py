"""What a handler sees of its job."""

from __future__ import annotations

from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import pytest
import trio
import trio.lowlevel

from sepp_trio import HandlerError, JobCtx, Payload, SeppClient, TraceContext, wire
from sepp_trio.wire import records
from tests.worker.helpers import Sepp, running, until, worker_on

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def see(sepp: Sepp, client: SeppClient, look: Any, **members: Any) -> None:
    """Run ``look(ctx)`` in a handler of a job with these members; its assertions come out."""
    failed: list[BaseException] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        try:
            look(ctx)
        except BaseException as error:
            failed.append(error)

    worker = worker_on(client)
    worker.handle("t", handler)
    async with running(worker):
        sepp.put("t", **members)
        await until(lambda: sepp.acks)
    if failed:
        raise failed[0]


async def test_all_of_a_job_can_be_read(sepp: Sepp, client: SeppClient) -> None:
    custom = {
        "text": records.PrimitiveValue(string_value=""),
        "number": records.PrimitiveValue(int_value=-7),
        "flag": records.PrimitiveValue(bool_value=False),
    }

    def look(ctx: JobCtx) -> None:
        assert ctx.id
        assert (ctx.queue, ctx.job_type, ctx.priority) == ("emails", "t", 7)
        assert (ctx.attempt, ctx.max_attempts, ctx.is_last_attempt) == (2, 3, False)
        assert ctx.enqueued_at == datetime(2026, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)
        assert ctx.scheduled_at == datetime(2026, 1, 1, 1, tzinfo=UTC)
        assert ctx.custom == {"text": "", "number": -7, "flag": False}
        assert ctx.custom is ctx.custom
        assert ctx.trace_context == TraceContext(PARENT, "a=b")
        assert ctx.worker_id == "w"
        assert abs((ctx.lease_expires_at - ctx.enqueued_at).total_seconds() - 30) < 1
        assert 29 < ctx.remaining() <= 30
        assert ctx.lease_deadline == pytest.approx(trio.current_time() + ctx.remaining())
        assert ctx.cancel_reason is None
        assert not ctx.stopping
        assert repr(ctx) == f"<JobCtx of job {ctx.id} (t, attempt 2/3)>"

    epoch = 1_767_225_600
    await see(
        sepp,
        client,
        look,
        priority=7,
        attempt=2,
        enqueued_at=(epoch, 500_000_000),
        scheduled_at=(epoch + 3600, 0),
        custom=wire.encode_custom(custom),
        trace_context=wire.encode_trace_context(records.TraceContext(PARENT, "a=b")),
    )


async def test_what_a_job_does_not_have_is_none(sepp: Sepp, client: SeppClient) -> None:
    def look(ctx: JobCtx) -> None:
        assert ctx.scheduled_at is None
        assert ctx.trace_context is None
        assert ctx.custom == {}

    await see(sepp, client, look)


async def test_what_cannot_be_read_of_trace_and_schedule_is_none(
    sepp: Sepp, client: SeppClient
) -> None:
    def look(ctx: JobCtx) -> None:
        assert ctx.scheduled_at is None
        assert ctx.trace_context is None

    await see(sepp, client, look, scheduled_at=(2**62, 0), trace_context=b"\xff\xff")


async def test_a_handler_sees_its_lease_in_the_effective_deadline(
    sepp: Sepp, client: SeppClient
) -> None:
    def look(ctx: JobCtx) -> None:
        assert 29.5 < trio.current_effective_deadline() - trio.current_time() < 30

    await see(sepp, client, look)


colour = ContextVar("colour", default="none")


async def test_a_handler_sees_the_context_variables_of_run_and_keeps_its_own(
    sepp: Sepp, client: SeppClient
) -> None:
    seen: list[str] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        seen.append(colour.get())
        colour.set("green")
        await trio.lowlevel.checkpoint()

    worker = worker_on(client, max_in_flight=1)
    worker.handle("t", handler)

    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        colour.set("red")
        await worker.run(task_status=task_status)

    async with trio.open_nursery() as nursery:
        await nursery.start(run)
        sepp.put("t", "t", "t")
        await until(lambda: len(sepp.acks) == 3)
        worker.shutdown()
    assert seen == ["red"] * 3


async def test_a_context_outlives_its_job_but_not_its_lease(sepp: Sepp, client: SeppClient) -> None:
    kept: list[JobCtx] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        kept.append(ctx)
        raise HandlerError.permanent("done with")

    worker = worker_on(client)
    worker.handle("t", handler)
    async with running(worker):
        sepp.put("t")
        await until(lambda: sepp.nacks)
    [ctx] = kept
    assert ctx.job_type == "t"
    with pytest.raises(Exception, match="acked or nacked"):
        await ctx.extend(30)
    await trio.sleep(60)
    assert ctx.remaining() == 0
