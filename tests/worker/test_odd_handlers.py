"""Handlers that nobody would write on purpose: they cost their own job and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sepp_trio import HandlerError, JobCtx, Payload, RetryDirective, SeppClient
from tests.worker.helpers import Sepp, running, until, worker_on


class Unreadable(ExceptionGroup[Exception]):
    """A group that does not tell its members."""

    @property
    def exceptions(self) -> Sequence[Exception]:  # type: ignore[override]
        raise RuntimeError("no")


def broken_verdict() -> HandlerError:
    verdict = HandlerError.retry("later")
    verdict.directive = None  # type: ignore[assignment]
    return verdict


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Unreadable("g", [HandlerError.retry("later")]), "later"),
        (broken_verdict(), "handler raised HandlerError, which cannot be read"),
    ],
    ids=["group", "verdict"],
)
async def test_an_exception_that_cannot_be_read_is_a_retry_and_costs_no_slot(
    sepp: Sepp, client: SeppClient, error: Exception, reason: str
) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        raise error

    worker = worker_on(client, max_in_flight=1)
    worker.handle("t", handler)
    async with running(worker):
        sepp.put(*["t"] * 3)
        await until(lambda: worker.statistics().retried == 3)
        assert worker.statistics().in_flight == 0
    assert [nack.reason for nack in sepp.nacks] == [reason] * 3


@pytest.mark.parametrize("way", ["ack", "nack", "hold"])
async def test_what_a_handler_settles_itself_is_counted(
    sepp: Sepp, client: SeppClient, way: str
) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        if way == "ack":
            await client.ack(ctx)
        elif way == "nack":
            await client.nack(ctx, RetryDirective.DEAD_LETTER, "mine")
        else:
            async with client.hold(ctx) as lease:
                await lease.ack()

    worker = worker_on(client)
    worker.handle("t", handler)
    async with running(worker):
        sepp.put(*["t"] * 5)
        await until(lambda: worker.statistics().settled_by_handler == 5)
    statistics = worker.statistics()
    assert statistics.received == 5
    assert statistics.acked == statistics.dead_lettered == statistics.retried == 0
