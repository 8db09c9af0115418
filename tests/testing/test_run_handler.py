"""``run_handler``: what becomes of a job, by what its handler does."""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from sepp_trio import (
    BrokerConfig,
    DeadLetterCause,
    EnqueueRequest,
    HandlerError,
    JobCtx,
    JobRejectedError,
    LimitsConfig,
    Payload,
)
from sepp_trio.testing import (
    Acked,
    BlackHole,
    DeadLettered,
    DropConnection,
    Extend,
    Fail,
    FaultPlan,
    LeaseLost,
    LoseLease,
    LoseReply,
    RestartServer,
    Retried,
    assert_no_leaks,
    open_recording_broker,
    run_handler,
)


async def at_once(payload: Payload | None, ctx: JobCtx) -> None:
    """Has nothing to do."""


def plain(payload: Payload | None, ctx: JobCtx) -> None:
    """Has nothing to do, in a thread."""


async def never_ends(payload: Payload | None, ctx: JobCtx) -> None:
    """Waits for good."""
    await trio.sleep_forever()


# ---- outcomes ----


async def test_a_handler_that_returns_acks() -> None:
    seen: list[tuple[Payload | None, str, int]] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        seen.append((payload, ctx.job_type, ctx.attempt))
        await trio.sleep(3)

    outcome = await run_handler(handler, Payload.json([1]), job_type="email", attempt=2)
    assert outcome == Acked()
    assert (outcome.duration, outcome.attempt, outcome.error) == (3, 2, None)
    assert seen == [(Payload.json([1]), "email", 2)]
    assert repr(outcome) == "Acked(attempt=2, duration=3.0)"


async def test_a_handler_that_raises_is_retried_and_given_up_at_last() -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        raise HandlerError.retry_after("not yet", 30)

    assert await run_handler(handler) == Retried(30, "not yet")
    outcome = await run_handler(handler, attempt=3)
    assert outcome == DeadLettered("not yet")
    assert isinstance(outcome, DeadLettered)
    assert outcome.cause is DeadLetterCause.ATTEMPTS_EXHAUSTED
    assert isinstance(outcome.error, HandlerError)


async def test_a_permanent_failure_is_a_dead_letter_at_once() -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        raise HandlerError.permanent("no such user")

    outcome = await run_handler(handler)
    assert outcome == DeadLettered("no such user")
    assert isinstance(outcome, DeadLettered)
    assert outcome.cause is DeadLetterCause.REJECTED


async def test_the_retry_policy_is_the_servers() -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        raise HandlerError.retry("later")

    config = BrokerConfig(limits=LimitsConfig(retry_delay_ms=1500))
    outcome = await run_handler(handler, config=config)
    assert isinstance(outcome, Retried)
    assert 0.7 < outcome.delay <= 1.5
    assert repr(outcome).startswith(f"Retried({outcome.delay}, 'later', error=")


async def test_a_lease_that_runs_out_is_lost() -> None:
    outcome = await run_handler(never_ends)
    assert outcome == LeaseLost("its time is up")
    assert outcome.cancel_reason == "lease lost"
    assert isinstance(outcome.error, trio.Cancelled)


async def test_outcomes_of_different_kinds_differ() -> None:
    outcomes = [Acked(), Retried(0, "a"), Retried(1, "a"), DeadLettered("a"), LeaseLost("a")]
    for i, outcome in enumerate(outcomes):
        assert [other == outcome for other in outcomes] == [j == i for j in range(5)]


async def test_extends_are_logged() -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await ctx.extend(60)
        await trio.sleep(55)

    outcome = await run_handler(handler)
    assert outcome == Acked()
    assert outcome.extends == (Extend(0, 60, 60),)
    outcome = await run_handler(handler, auto_extend=True, lease_duration=10)
    assert outcome.extends[:2] == (Extend(55, 60, 115), Extend(108.375, 10, 118.375))


async def test_the_story_is_told() -> None:
    outcome = await run_handler(at_once, attempt=2)
    assert [(event.kind, event.attempt) for event in outcome.events] == [
        ("enqueued", 1),
        ("leased", 1),
        ("nacked", 1),
        ("leased", 2),
        ("acked", 2),
    ]


# ---- what can be asked for ----


async def test_all_fields_of_a_job_arrive() -> None:
    due = datetime.now(UTC) + timedelta(hours=5)
    seen: list[Any] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        seen.extend([ctx.queue, ctx.job_type, ctx.priority, ctx.max_attempts, ctx.custom["n"]])
        assert ctx.scheduled_at is not None
        seen.append(ctx.scheduled_at)

    outcome = await run_handler(
        handler,
        queue="mail",
        job_type="send",
        priority=7,
        max_attempts=9,
        idempotency_key="k",
        custom={"n": 1},
        trace_context=None,
        scheduled_at=due,
    )
    assert outcome == Acked()
    assert seen == ["mail", "send", 7, 9, 1, due]
    assert trio.current_time() >= 5 * 3600 - 60


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"prio": 3}, TypeError, r"no argument 'prio' \(did you mean priority\?\), and"),
        ({"lease": 30}, TypeError, r"no argument 'lease' \(did you mean lease_duration\?\)"),
        (
            {"xyz": 1},
            TypeError,
            "'xyz', and .* arguments are handler, payload, attempt.* of EnqueueRequest custom, ",
        ),
        ({"priority": 10}, ValueError, "priority must be between 0 and 9, not 10"),
        ({"queue": "a/b"}, ValueError, "queue must not"),
        ({"job_type": 3}, TypeError, "job_type must be a string"),
        ({"payload": b"x"}, TypeError, "payload must be a Payload, not bytes"),
        ({"attempt": 0}, ValueError, "attempt must be between 1"),
        (
            {"attempt": 4},
            ValueError,
            r"at most the job's max_attempts \(3\), not 4",
        ),
        ({"attempt": True}, TypeError, "attempt must be an int"),
        ({"lease_duration": 0}, ValueError, "lease_duration must be more than 0"),
        ({"handler_timeout": -1}, ValueError, "timeout must be more than 0"),
        ({"limit": 0}, ValueError, "limit must be more than 0"),
        ({"scheduled_at": datetime(2030, 1, 1)}, ValueError, "scheduled_at must have a time zone"),
        ({"handler": len}, TypeError, "must take two arguments"),
        (
            {"faults": FaultPlan((RestartServer(1),)), "broker": 1},
            ValueError,
            "server must be given",
        ),
        ({"config": BrokerConfig(), "broker": 1}, ValueError, "give one of the two"),
        ({"faults": [Fail("Ack")]}, TypeError, "faults must be a FaultPlan, not list"),
        ({"config": {}}, TypeError, "config must be a BrokerConfig, not dict"),
    ],
    ids=str,
)
async def test_bad_arguments_are_refused_by_name(
    arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    async with assert_no_leaks(), open_recording_broker() as broker:
        if "broker" in arguments:
            arguments = {**arguments, "broker": broker}
        handler = arguments.get("handler", at_once)
        others = {name: value for name, value in arguments.items() if name != "handler"}
        with pytest.raises(error, match=words):
            await run_handler(handler, **others)


async def test_a_coroutine_is_no_handler() -> None:
    with pytest.raises(TypeError, match=r"pass at_once, not at_once\(...\)"):
        await run_handler(at_once(None, None))  # type: ignore[arg-type]


async def test_what_the_server_refuses_comes_out() -> None:
    with pytest.raises(JobRejectedError, match="job type of 300 bytes is over"):
        await run_handler(at_once, job_type="x" * 300)


async def test_a_broker_that_is_given_keeps_what_the_handler_leaves() -> None:
    async with open_recording_broker() as broker, broker.open_client() as client:

        async def handler(payload: Payload | None, ctx: JobCtx) -> None:
            await client.enqueue(EnqueueRequest("next", "n"))
            await client.ack(ctx)
            raise ValueError("after the ack")

        outcome = await run_handler(handler, broker=broker)
        assert outcome == Acked()
        assert isinstance(outcome.error, ValueError)
        assert len(broker.jobs("next").ready) == 1
        with pytest.raises(ValueError, match="broker must have no other job in queue 'next'"):
            await run_handler(handler, broker=broker, queue="next")


# ---- faults ----


async def test_a_stolen_lease_is_lost() -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(15)

    for by in ("ack", "expiry"):
        plan = FaultPlan((LoseLease(5, by),))  # type: ignore[arg-type]
        outcome = await run_handler(handler, faults=plan)
        assert outcome == LeaseLost("job not found")
        assert outcome.duration == 15
        assert [happening.fault for happening in outcome.happened] == list(plan.faults)
        outcome = await run_handler(handler, faults=plan, auto_extend=True)
        assert outcome == LeaseLost("job not found")
        assert outcome.duration is not None
        assert outcome.duration < 15


async def test_a_delivery_that_is_lost_on_the_way_is_followed_by_the_next() -> None:
    outcome = await run_handler(at_once, faults=FaultPlan((LoseReply("Reserve"),)))
    assert outcome == Acked()
    assert outcome.attempt == 2


async def test_a_job_that_never_reaches_the_handler_is_a_dead_letter() -> None:
    plan = FaultPlan((LoseReply("Reserve"),))
    outcome = await run_handler(at_once, faults=plan, max_attempts=1)
    assert outcome == DeadLettered(None)
    assert isinstance(outcome, DeadLettered)
    assert outcome.cause is DeadLetterCause.LEASE_EXPIRED
    assert outcome.duration is None


async def test_a_job_that_somebody_settles_before_the_handler_begins_is_lost() -> None:
    plan = FaultPlan((LoseReply("Reserve", silent=True), LoseLease(5, "ack")))
    async with open_recording_broker() as broker, broker.open_client() as client:

        async def steal() -> None:
            jobs = await broker.until(lambda jobs: jobs.leased)
            await client.ack(jobs[0])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(steal)
            outcome = await run_handler(at_once, faults=plan, broker=broker)
    assert outcome == Acked(), "by somebody, if not by the handler"
    assert outcome.duration is None


async def test_a_report_that_does_not_arrive_is_a_lost_lease() -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(1)

    outcome = await run_handler(handler, faults=FaultPlan((BlackHole(0.5, 120),)))
    assert outcome == LeaseLost("it ended before the worker's report was answered")
    assert outcome.error is None


# ---- handlers that do not end ----


async def shielded(payload: Payload | None, ctx: JobCtx) -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()


async def shielded_child(payload: Payload | None, ctx: JobCtx) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shielded, payload, ctx)
        with trio.CancelScope(shield=True):
            while True:
                with trio.CancelScope(shield=True):
                    await trio.sleep(7)


@pytest.mark.parametrize("handler", [never_ends, shielded, shielded_child])
async def test_a_handler_that_never_ends_is_ended(handler: Any) -> None:
    where = rf"after 3600 s .*{handler.__name__} has not ended; it is at .*test_run_handler.py:"
    async with assert_no_leaks():
        with pytest.raises(trio.TooSlowError, match=where):
            await run_handler(handler, auto_extend=True)
        with pytest.raises(trio.TooSlowError, match="after 5 s"):
            await run_handler(handler, limit=5)


async def test_a_thread_that_never_ends_is_ended_where_it_looks_for_a_cancel() -> None:
    def polls(payload: Payload | None, ctx: JobCtx) -> None:
        while True:
            trio.from_thread.check_cancelled()
            time.sleep(0.001)  # here

    where = r"polls has not ended; it is at .*test_run_handler\.py:\d+ in polls: .*"
    with pytest.raises(trio.TooSlowError, match=where):
        await run_handler(polls, limit=0.1)


async def test_a_job_that_does_not_arrive_in_time_is_told_of() -> None:
    plan = FaultPlan((BlackHole(0, 10_000),))
    async with assert_no_leaks():
        with pytest.raises(trio.TooSlowError, match="at_once has not begun: the job did not reach"):
            await run_handler(at_once, faults=plan, limit=60)


async def test_a_report_that_is_not_answered_in_time_is_told_of() -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(1)

    plan = FaultPlan((BlackHole(0.5, 10_000),))
    async with assert_no_leaks():
        with pytest.raises(trio.TooSlowError, match="has ended, but the worker could not report"):
            await run_handler(handler, faults=plan, limit=60, lease_duration=300)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()], ids=repr)
async def test_a_handler_that_leaves_the_program_does_so(error: BaseException) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        raise error

    async with assert_no_leaks():
        with pytest.raises(type(error)) as caught:
            await run_handler(handler)
        assert caught.value is error


# ---- cancels from outside ----


async def test_a_cancel_from_outside_cancels_the_handler() -> None:
    reasons: list[str | None] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        try:
            await trio.sleep_forever()
        finally:
            reasons.append(ctx.cancel_reason)
            with trio.CancelScope(shield=True):
                await trio.sleep(2)

    async with assert_no_leaks():
        with trio.move_on_after(10):
            await run_handler(handler)
            raise AssertionError("it was cancelled")
        assert trio.current_time() == 12
        assert reasons == ["worker cancelled"]


@pytest.mark.parametrize("handler", [shielded, shielded_child])
async def test_a_handler_that_outlasts_a_cancel_from_outside_is_ended(handler: Any) -> None:
    async with assert_no_leaks():
        with trio.move_on_after(10) as scope:
            await run_handler(handler, limit=100)
        assert scope.cancelled_caught
        assert 100 <= trio.current_time() < 110


class _CancelAtStep(trio.abc.Instrument):
    """Cancels a scope at the ``step``-th turn of any task."""

    def __init__(self, step: int, scope: trio.CancelScope) -> None:
        self.left = step
        self._scope = scope
        self._token = trio.lowlevel.current_trio_token()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.left -= 1
        if self.left == 0:
            self._token.run_sync_soon(self._scope.cancel)


async def _cancelled_at(step: int, arguments: dict[str, Any]) -> bool:
    """Whether there were so many steps."""
    running = 0

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        nonlocal running
        running += 1
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep, 4)
                await ctx.extend(20)
        finally:
            running -= 1

    async with assert_no_leaks():
        began = trio.current_time()
        with trio.CancelScope() as scope:
            instrument = _CancelAtStep(step, scope)
            trio.lowlevel.add_instrument(instrument)
            assert isinstance(await run_handler(handler, **arguments), Acked | Retried)
        trio.lowlevel.remove_instrument(instrument)
        assert not running
        assert trio.current_time() - began < 30
        return instrument.left <= 0


@pytest.mark.parametrize(
    ("arguments", "stride"),
    [
        ({}, 2),
        ({"attempt": 2, "auto_extend": True, "faults": FaultPlan((LoseReply("Extend"),))}, 7),
    ],
    ids=["plain", "faults"],
)
def test_a_cancel_at_any_step_leaves_nothing_behind(arguments: Any, stride: int) -> None:
    logging.getLogger("sepp_trio").setLevel(logging.CRITICAL)
    try:
        for step in range(1, 100_000, stride):
            clock = trio.testing.MockClock(autojump_threshold=0)
            if not trio.run(_cancelled_at, step, arguments, clock=clock):
                break
        assert step > 100
    finally:
        logging.getLogger("sepp_trio").setLevel(logging.NOTSET)


# ---- clocks, and ways to run ----


async def sleeps(payload: Payload | None, ctx: JobCtx) -> None:
    await trio.sleep(0.02)
    if ctx.attempt == 1:
        raise HandlerError.retry_after("once more", 5)


@pytest.mark.parametrize(
    "clock", [None, trio.testing.MockClock(rate=5), trio.testing.MockClock(autojump_threshold=0)]
)
def test_it_works_on_any_clock(clock: trio.abc.Clock | None) -> None:
    async def main() -> None:
        began = time.perf_counter()
        async with assert_no_leaks():
            assert await run_handler(sleeps) == Retried(5, "once more")
            assert await run_handler(sleeps, attempt=2) == Acked()
            assert await run_handler(plain) == Acked()
            assert await run_handler(never_ends, handler_timeout=0.05) == Retried(
                0, "handler timed out after 0.05 s"
            )
            with trio.move_on_after(0.05):
                await run_handler(never_ends)
        assert time.perf_counter() - began < 20

    trio.run(main, clock=clock)


def test_the_real_clock_has_a_limit_too() -> None:
    with pytest.raises(trio.TooSlowError, match=r"after 0\.1 s on Trio's clock shielded has not"):
        trio.run(lambda: run_handler(shielded, limit=0.1))


@settings(max_examples=20)
@given(st.lists(st.integers(0, 5), max_size=5), st.integers(1, 3))
def test_it_works_inside_hypothesis(pauses: list[int], attempt: int) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        for pause in pauses:
            await trio.sleep(pause)
        if 5 in pauses:
            raise HandlerError.retry_after("five", 5)

    async def main() -> None:
        outcome = await run_handler(handler, attempt=attempt)
        assert outcome.duration == sum(pauses)
        if 5 not in pauses:
            assert outcome == Acked()
        else:
            assert outcome == (Retried(5, "five") if attempt < 3 else DeadLettered("five"))

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_with_faults_only_the_handler_is_heard_of(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(20)
        raise ValueError("the handler's own")

    plan = FaultPlan((DropConnection(0), DropConnection(1), LoseReply("Nack")))
    with caplog.at_level(logging.DEBUG, "sepp_trio"):
        assert isinstance(await run_handler(handler, faults=plan), Retried)
        [heard] = [record for record in caplog.records if record.name == "sepp_trio.worker"]
        assert "the handler's own" in heard.getMessage()
        caplog.clear()
        await run_handler(never_ends, faults=FaultPlan((DropConnection(1),)))
        assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
        await run_handler(never_ends)
        assert [record for record in caplog.records if record.levelno >= logging.WARNING]
