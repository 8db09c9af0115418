"""Handlers that nobody would write on purpose: they cost their own job and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sepp_trio import HandlerError, JobCtx, Payload, RetryDirective, SeppClient
from sepp_trio.testing import CallLog, RecordingBroker
from tests.worker.helpers import RETRY_DELAY, Put, running, worker_on


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
    broker: RecordingBroker, client: SeppClient, put: Put, error: Exception, reason: str
) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        if ctx.attempt == 1:
            raise error

    worker = worker_on(client, max_in_flight=1)
    worker.handle("t", handler)
    async with running(worker):
        await put(*["t"] * 3)
        await broker.settled()
    assert worker.statistics().retried == 3
    for job in broker.jobs().acked:
        [nack] = [event for event in job.events if event.kind == "nacked"]
        assert (nack.reason, nack.seconds) == (reason, RETRY_DELAY)
    assert len(broker.jobs().acked) == 3


@pytest.mark.parametrize("way", ["ack", "nack", "hold"])
async def test_what_a_handler_settles_itself_is_counted(
    broker: RecordingBroker, calls: CallLog, client: SeppClient, put: Put, way: str
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
        await put(*["t"] * 5)
        await broker.settled()
    statistics = worker.statistics()
    assert (statistics.received, statistics.settled_by_handler) == (5, 5)
    assert statistics.acked == statistics.dead_lettered == statistics.retried == 0
    assert len(calls.of("Ack")) + len(calls.of("Nack")) == 5
