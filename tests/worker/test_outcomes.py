"""What becomes of a job is what its handler did."""

from __future__ import annotations

import logging

import pytest
import trio

from sepp_trio import HandlerError, JobCtx, Payload
from sepp_trio.testing import Acked, DeadLettered, Outcome, Retried, run_handler
from tests.worker.bench import CONFIG, Bench
from tests.worker.helpers import RETRY_DELAY, at_once


async def outcome_of(error: BaseException, *, attempt: int = 1) -> Outcome:
    """What becomes of a job whose handler raises this."""

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        raise error

    return await run_handler(handler, attempt=attempt, config=CONFIG)


async def test_a_job_whose_handler_returns_is_acked_once(bench: Bench) -> None:
    async with bench.running(at_once):
        [job_id] = await bench.put("t")
        await bench.settled()
    assert [job.id for job in bench.jobs().acked] == [job_id]
    [ack] = bench.asked("Ack")
    assert (ack.attempt, ack.worker_id) == (1, "w")
    assert bench.calls.of("Nack") == ()


async def test_a_handler_gets_payload_and_context() -> None:
    seen: list[object] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        seen.extend([payload, str(ctx).partition(" (")[2]])

    assert await run_handler(handler, Payload(b"{}", "json"), job_type="t") == Acked()
    assert seen == [Payload(b"{}", "json"), "t, attempt 1/3)"]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (HandlerError.retry("later"), Retried(RETRY_DELAY, "later")),
        (HandlerError.retry_after("in a bit", 2.5), Retried(2.5, "in a bit")),
        (HandlerError.permanent("never"), DeadLettered("never")),
        (ValueError("bad row"), Retried(RETRY_DELAY, "handler raised ValueError: bad row")),
        (ValueError(), Retried(RETRY_DELAY, "handler raised ValueError")),
    ],
)
async def test_what_a_handler_raises_is_its_nack(error: Exception, outcome: Outcome) -> None:
    assert await outcome_of(error) == outcome


@pytest.mark.parametrize(
    ("errors", "outcome"),
    [
        ([HandlerError.permanent("no")], DeadLettered("no")),
        ([HandlerError.retry_after("wait", 30)], Retried(30, "wait")),
        ([ValueError("x")], Retried(RETRY_DELAY, "handler raised ValueError: x")),
        ([ValueError("x"), HandlerError.retry("again")], Retried(RETRY_DELAY, "again")),
        ([HandlerError.retry("again"), HandlerError.permanent("no")], DeadLettered("no")),
        ([HandlerError.retry_after("a", 5), HandlerError.retry_after("b", 9)], Retried(9, "b")),
        (
            [ValueError("x"), KeyError("y")],
            Retried(RETRY_DELAY, "handler raised ValueError: x (and 1 more)"),
        ),
    ],
)
async def test_errors_inside_groups_count(errors: list[Exception], outcome: Outcome) -> None:
    async def fail(error: Exception) -> None:
        raise error

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        if len(errors) > 1:
            raise ExceptionGroup("several", [errors[0], ExceptionGroup("inner", errors[1:])])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail, errors[0])

    assert await run_handler(handler, config=CONFIG) == outcome


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("\udcff.txt"), r"handler raised ValueError: \udcff.txt"),
        (ValueError("a\n\r\0b"), "handler raised ValueError: a b"),
        (ValueError("€" * 10), "handler raised ValueError: " + "€" * 10),
        (ValueError("x" * 2**20), "handler raised ValueError: " + "x" * 500 + "…"),
        (Unprintable(), "handler raised Unprintable: (its text cannot be read)"),
        (HandlerError.retry("\udcff" * 9000), None),
    ],
)
async def test_reasons_are_clean_and_short(error: Exception, reason: str | None) -> None:
    outcome = await outcome_of(error)
    assert isinstance(outcome, Retried)
    assert outcome.reason is not None
    assert len(outcome.reason.encode()) <= 4096
    if reason is not None:
        assert outcome.reason == reason


@pytest.mark.parametrize(("attempt", "delay"), [(1, 2), (2, 4)])
async def test_what_is_no_exception_is_a_retry_after_a_while(attempt: int, delay: float) -> None:
    class Odd(BaseException):
        pass

    outcome = await outcome_of(Odd("really"), attempt=attempt)
    assert outcome == Retried(delay, "handler raised Odd: really")


async def test_a_timeout_of_the_handlers_own_is_an_error_of_its_own() -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        with trio.fail_after(1):
            await trio.sleep_forever()

    outcome = await run_handler(handler, config=CONFIG)
    assert outcome == Retried(RETRY_DELAY, "handler raised TooSlowError")
    assert outcome.cancel_reason is None


async def test_a_handler_that_takes_too_long_is_cancelled_and_its_job_retried() -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep_forever()

    outcome = await run_handler(handler, handler_timeout=2, config=CONFIG)
    assert outcome == Retried(RETRY_DELAY, "handler timed out after 2 s")
    assert (outcome.duration, outcome.cancel_reason) == (2, "handler timed out")


async def test_a_handlers_word_counts_when_it_was_timed_out() -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            raise HandlerError.permanent("poison") from cancelled

    assert await run_handler(handler, handler_timeout=2) == DeadLettered("poison")


async def test_failures_are_logged_with_their_traceback_and_no_payload(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        raise ValueError("bad row")

    caplog.set_level(logging.DEBUG)
    async with bench.running(handler):
        [job_id] = await bench.put("t", payload=Payload(b"sEcReT", "raw"), max_attempts=1)
        await bench.settled()
    [record] = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert record.name == "sepp_trio.worker"
    assert record.getMessage() == (
        f"job {job_id} type 't' attempt 1/1: handler raised ValueError: bad row"
    )
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)
    assert "sEcReT" not in caplog.text


async def test_a_handler_may_ack_by_itself(bench: Bench) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await bench.client.ack(ctx)

    async with bench.running(handler):
        await bench.put("t")
        await bench.settled()
    assert bench.jobs().acked
    assert len(bench.calls.of("Ack")) == 1
