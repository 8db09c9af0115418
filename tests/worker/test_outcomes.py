"""What becomes of a job is what its handler did."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio

from sepp_trio import HandlerError, JobCtx, Payload, SeppClient
from tests.worker.helpers import Sepp, at_once, running, until, worker_on


async def run_one(sepp: Sepp, client: SeppClient, handler: Any, **options: Any) -> str:
    """Let a worker handle one job; its id."""
    worker = worker_on(client, **options)
    worker.handle("t", handler)
    async with running(worker):
        [job_id] = sepp.put("t")
        await until(lambda: worker.statistics().received and not worker.statistics().in_flight)
    return job_id


async def test_a_job_whose_handler_returns_is_acked_once(sepp: Sepp, client: SeppClient) -> None:
    job_id = await run_one(sepp, client, at_once)
    assert sepp.acks == [job_id]
    assert sepp.nacks == []
    [ack] = sepp.requests("Ack")
    assert (ack.attempt, ack.worker_id) == (1, "w")


async def test_a_handler_gets_payload_and_context(sepp: Sepp, client: SeppClient) -> None:
    seen: list[Any] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        seen.extend([payload, ctx])

    await run_one(sepp, client, handler)
    assert seen[0] == Payload(b"{}", "json")
    assert str(seen[1]).endswith("(t, attempt 1/3)")


@pytest.mark.parametrize(
    ("error", "retry", "reason"),
    [
        (HandlerError.retry("later"), {"default": ()}, "later"),
        (HandlerError.retry_after("in a bit", 2.5), {"delay": (2, 500_000_000)}, "in a bit"),
        (HandlerError.permanent("never"), {"dead_letter": ()}, "never"),
        (ValueError("bad row"), {"default": ()}, "handler raised ValueError: bad row"),
        (ValueError(), {"default": ()}, "handler raised ValueError"),
    ],
)
async def test_what_a_handler_raises_is_its_nack(
    sepp: Sepp, client: SeppClient, error: Exception, retry: dict[str, Any], reason: str
) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        raise error

    await run_one(sepp, client, handler)
    [nack] = sepp.nacks
    assert {k: v for k in retry if (v := getattr(nack.retry, k)) is not None} == retry
    assert nack.reason == reason
    assert sepp.acks == []


@pytest.mark.parametrize(
    ("errors", "kind", "reason"),
    [
        ([HandlerError.permanent("no")], "dead_letter", "no"),
        ([HandlerError.retry_after("wait", 30)], "delay", "wait"),
        ([ValueError("x")], "default", "handler raised ValueError: x"),
        ([ValueError("x"), HandlerError.retry("again")], "default", "again"),
        ([HandlerError.retry("again"), HandlerError.permanent("no")], "dead_letter", "no"),
        ([HandlerError.retry_after("a", 5), HandlerError.retry_after("b", 9)], "delay", "b"),
        ([ValueError("x"), KeyError("y")], "default", "handler raised ValueError: x (and 1 more)"),
    ],
)
async def test_errors_inside_groups_count(
    sepp: Sepp, client: SeppClient, errors: list[Exception], kind: str, reason: str
) -> None:
    async def fail(error: Exception) -> None:
        raise error

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        if len(errors) > 1:
            raise ExceptionGroup("several", [errors[0], ExceptionGroup("inner", errors[1:])])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail, errors[0])

    await run_one(sepp, client, handler)
    [nack] = sepp.nacks
    assert nack.retry is not None
    assert getattr(nack.retry, kind) is not None
    assert nack.reason == reason


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
async def test_reasons_are_clean_and_short(
    sepp: Sepp, client: SeppClient, error: Exception, reason: str | None
) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        raise error

    await run_one(sepp, client, handler)
    [nack] = sepp.nacks
    assert nack.reason is not None
    assert len(nack.reason.encode()) <= 4096
    if reason is not None:
        assert nack.reason == reason


async def test_what_is_no_exception_is_a_retry_after_a_while(
    sepp: Sepp, client: SeppClient
) -> None:
    class Odd(BaseException):
        pass

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        raise Odd("really")

    await run_one(sepp, client, handler)
    [nack] = sepp.nacks
    assert nack.retry is not None
    assert nack.retry.delay == (2, 0)


async def test_a_timeout_of_the_handlers_own_is_an_error_of_its_own(
    sepp: Sepp, client: SeppClient
) -> None:
    reasons: list[str | None] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        try:
            with trio.fail_after(1):
                await trio.sleep_forever()
        finally:
            reasons.append(ctx.cancel_reason)

    await run_one(sepp, client, handler)
    [nack] = sepp.nacks
    assert nack.reason == "handler raised TooSlowError"
    assert reasons == [None]


async def test_a_handler_that_takes_too_long_is_cancelled_and_its_job_retried(
    sepp: Sepp, client: SeppClient
) -> None:
    reasons: list[str | None] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        try:
            await trio.sleep_forever()
        finally:
            reasons.append(ctx.cancel_reason)

    await run_one(sepp, client, handler, handler_timeout=2)
    [nack] = sepp.nacks
    assert nack.reason == "handler timed out after 2 s"
    assert nack.retry is not None
    assert nack.retry.default == ()
    assert reasons == ["handler timed out"]


async def test_a_handlers_word_counts_when_it_was_timed_out(sepp: Sepp, client: SeppClient) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled as cancelled:
            raise HandlerError.permanent("poison") from cancelled

    await run_one(sepp, client, handler, handler_timeout=2)
    [nack] = sepp.nacks
    assert nack.reason == "poison"


async def test_failures_are_logged_with_their_traceback_and_no_payload(
    sepp: Sepp, client: SeppClient, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        raise ValueError("bad row")

    caplog.set_level(logging.DEBUG)
    job_id = await run_one(sepp, client, handler)
    [record] = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert record.name == "sepp_trio.worker"
    assert record.getMessage() == (
        f"job {job_id} type 't' attempt 1/3: handler raised ValueError: bad row"
    )
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)


async def test_a_handler_may_ack_by_itself(sepp: Sepp, client: SeppClient) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await client.ack(ctx)

    job_id = await run_one(sepp, client, handler)
    assert sepp.acks == [job_id]
