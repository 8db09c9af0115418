"""Two hundred tests of handlers, as a service would have them, on virtual time: in all they take
seconds. Each is one ``run_handler`` with a real server, client and worker."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio
from grpclib.const import Status

from sepp_trio import EnqueueRequest, HandlerError, JobCtx, Payload
from sepp_trio.testing import (
    Acked,
    DeadLettered,
    Delay,
    DropConnection,
    Fail,
    Fault,
    FaultPlan,
    LeaseLost,
    LoseLease,
    LoseReply,
    RestartServer,
    Retried,
    open_recording_broker,
    run_handler,
)

# ---- handlers that read their job ----

DOCUMENTS: list[Any] = [None, True, 0, -1.5, "", "ü\x00", [], {}, [[[]]], {"a": {"b": [1, 2]}}]


@pytest.mark.parametrize("document", DOCUMENTS)
@pytest.mark.parametrize("in_thread", [False, True])
async def test_the_payload_arrives(document: Any, in_thread: bool) -> None:
    seen = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        assert payload is not None
        seen.append(payload.decode_json())

    def plain(payload: Payload | None, ctx: JobCtx) -> None:
        assert payload is not None
        seen.append(json.loads(payload.data))

    assert await run_handler(plain if in_thread else handler, Payload.json(document)) == Acked()
    assert seen == [document]


@pytest.mark.parametrize("priority", range(10))
async def test_a_handler_branches_on_priority_and_custom_values(priority: int) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        if ctx.priority < 5:
            raise HandlerError.retry_after(f"{ctx.custom['tenant']} can wait", 10 - ctx.priority)

    outcome = await run_handler(handler, priority=priority, custom={"tenant": "acme"})
    assert outcome == (Retried(10 - priority, "acme can wait") if priority < 5 else Acked())


@pytest.mark.parametrize("attempt", range(1, 11))
async def test_a_handler_grows_patient(attempt: int) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        raise HandlerError.retry_after(f"try {ctx.attempt}", 2**ctx.attempt)

    outcome = await run_handler(handler, attempt=attempt, max_attempts=10)
    if attempt == 10:
        assert outcome == DeadLettered("try 10")
    else:
        assert outcome == Retried(2**attempt, f"try {attempt}")


@pytest.mark.parametrize("hours", [1, 7, 24, 24 * 7, 24 * 29])
async def test_a_job_for_later_comes_later(hours: int) -> None:
    due = datetime.now(UTC) + timedelta(hours=hours)
    late: list[timedelta] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        assert ctx.scheduled_at is not None
        late.append(ctx.scheduled_at - due)

    assert await run_handler(handler, scheduled_at=due) == Acked()
    assert trio.current_time() == pytest.approx(hours * 3600, abs=60)
    assert late == [timedelta()]


# ---- handlers that take their time ----


@pytest.mark.parametrize("lease", [0.5, 1, 5, 30, 300])
@pytest.mark.parametrize("part", [0, 0.25, 0.5, 0.9, 1, 1.5])
async def test_a_handler_has_as_long_as_its_lease(lease: float, part: float) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(lease * part)

    outcome = await run_handler(handler, lease_duration=lease)
    assert outcome == (Acked() if part < 1 else LeaseLost("its time is up"))


@pytest.mark.parametrize("minutes", range(1, 21))
async def test_a_heartbeat_keeps_a_long_import_alive(minutes: int) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        for _ in range(minutes):
            await trio.sleep(60)

    outcome = await run_handler(handler, auto_extend=True)
    assert outcome == Acked()
    assert outcome.duration == 60 * minutes
    assert len(outcome.extends) in (6 * minutes - 1, 6 * minutes)


@pytest.mark.parametrize("chunks", range(1, 11))
async def test_a_handler_extends_by_itself(chunks: int) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        for _ in range(chunks):
            await ctx.extend(50)
            await trio.sleep(40)

    outcome = await run_handler(handler)
    assert outcome == Acked()
    assert [extend.at for extend in outcome.extends] == [40 * i for i in range(chunks)]


@pytest.mark.parametrize("timeout", [0.1, 0.5, 1, 2, 5, 10, 20, 25, 28, 29])
async def test_a_handler_that_hangs_is_timed_out(timeout: float) -> None:
    closed = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        try:
            await trio.sleep_forever()
        finally:
            closed.append(ctx.cancel_reason)

    outcome = await run_handler(handler, handler_timeout=timeout)
    assert outcome == Retried(0, f"handler timed out after {timeout:g} s")
    assert closed == ["handler timed out"]


@pytest.mark.parametrize("slow", range(12))
async def test_a_handler_gives_each_part_its_time(slow: int) -> None:
    done: list[int] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        for number in range(12):
            with trio.move_on_after(2):
                await trio.sleep(9 if number == slow else 1)
                done.append(number)
        if len(done) < 12:
            raise HandlerError.retry_after(f"{len(done)} of 12", 60)

    assert await run_handler(handler) == Retried(60, "11 of 12")
    assert slow not in done


# ---- handlers that fail ----

ERRORS = [
    ValueError("bad"),
    KeyError("id"),
    OSError(28, "No space left on device"),
    ZeroDivisionError(),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    trio.TooSlowError("too slow"),
    trio.BrokenResourceError(),
    RuntimeError("two\nlines"),
    AssertionError("1 != 2"),
    NotImplementedError(),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("last", [False, True])
async def test_an_unexpected_error_is_retried_to_the_end(error: Exception, last: bool) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(1)
        raise error

    outcome = await run_handler(handler, attempt=3 if last else 1)
    assert isinstance(outcome, DeadLettered if last else Retried)
    assert outcome.error is error
    assert outcome.reason is not None
    assert outcome.reason.startswith(f"handler raised {type(error).__name__}")


@pytest.mark.parametrize("failing", range(10))
async def test_the_verdict_of_one_child_counts_for_all(failing: int) -> None:
    async def child(number: int) -> None:
        await trio.sleep(number)
        if number == failing:
            raise HandlerError.permanent(f"row {number} is broken")

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(child, number)

    outcome = await run_handler(handler)
    assert outcome == DeadLettered(f"row {failing} is broken")
    assert outcome.duration == failing


# ---- handlers in bad company ----

FAULTS: list[Fault] = [
    Fail("Reserve"),
    Fail("Ack"),
    Fail("Ack", status=Status.INTERNAL),
    Fail("GetServerInfo"),
    Delay("Reserve", request=3),
    Delay("Reserve", reply=3),
    Delay("Ack", request=3),
    Delay("Ack", reply=3),
    LoseReply("Ack"),
    LoseReply("Ack", silent=True),
    LoseReply("GetServerInfo"),
    DropConnection(0),
    DropConnection(2),
    DropConnection(5),
    RestartServer(2),
    RestartServer(2, drain=True),
    RestartServer(5, down=10),
    Fail("Extend"),
    LoseReply("Extend"),
    Delay("Extend", reply=8),
]


@pytest.mark.parametrize("fault", FAULTS, ids=repr)
async def test_a_passing_fault_costs_no_job(fault: Fault) -> None:
    runs = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        runs.append(ctx.attempt)
        await trio.sleep(12)

    faults = FaultPlan((fault,))
    assert await run_handler(handler, auto_extend=True, faults=faults) == Acked()
    assert runs == [1]


@pytest.mark.parametrize("by", ["expiry", "ack"])
@pytest.mark.parametrize("at", [0.5, 5, 9.5, 12, 19])
async def test_a_lease_that_is_stolen_is_lost(by: Any, at: float) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(29)

    faults = FaultPlan((LoseLease(at, by),))
    outcome = await run_handler(handler, auto_extend=True, faults=faults)
    assert isinstance(outcome, LeaseLost)
    assert outcome.cancel_reason == "lease lost"


# ---- handlers that make more jobs ----


@pytest.mark.parametrize("count", range(1, 16))
async def test_a_handler_fans_out(count: int) -> None:
    async with open_recording_broker() as broker, broker.open_client() as client:

        async def handler(payload: Payload | None, ctx: JobCtx) -> None:
            for number in range(count):
                key = f"{ctx.id}/{number}"
                await client.enqueue(EnqueueRequest("parts", "part", idempotency_key=key))
            if ctx.attempt == 1:
                raise ConnectionError("after the last row")

        assert isinstance(await run_handler(handler, broker=broker, queue="a"), Retried)
        assert await run_handler(handler, broker=broker, queue="b", attempt=2) == Acked()
        assert len(broker.jobs("parts").ready) == 2 * count
