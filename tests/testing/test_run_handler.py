"""``run_handler``: what becomes of a job, by what its handler does."""

from __future__ import annotations

import trio

from sepp_trio import HandlerError, JobCtx, Payload
from sepp_trio.testing import Acked, DeadLettered, Extend, LeaseLost, Retried, run_handler


async def test_a_handler_that_returns_acks() -> None:
    seen: list[tuple[Payload | None, str, int]] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        seen.append((payload, ctx.job_type, ctx.attempt))
        await trio.sleep(3)

    outcome = await run_handler(handler, Payload.json([1]), job_type="email", attempt=2)
    assert outcome == Acked()
    assert (outcome.duration, outcome.attempt, outcome.error) == (3, 2, None)
    assert seen == [(Payload.json([1]), "email", 2)]


async def test_a_handler_that_raises_is_retried_and_given_up_at_last() -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        raise HandlerError.retry_after("not yet", 30)

    assert await run_handler(handler) == Retried(30, "not yet")
    assert await run_handler(handler, attempt=3) == DeadLettered("not yet")


async def test_a_lease_that_runs_out_is_lost() -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(100)

    assert await run_handler(handler) == LeaseLost("its time is up")


async def test_extends_are_logged() -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await ctx.extend(60)
        await trio.sleep(50)

    outcome = await run_handler(handler)
    assert outcome == Acked()
    assert outcome.extends == (Extend(0, 60, 60),)
