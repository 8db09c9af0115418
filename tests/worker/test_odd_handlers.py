"""Handlers that nobody would write on purpose: they cost their own job and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sepp_trio import HandlerError, JobCtx, Payload, RetryDirective
from tests.worker.bench import Bench
from tests.worker.helpers import RETRY_DELAY


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
    bench: Bench, error: Exception, reason: str
) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        if ctx.attempt == 1:
            raise error

    async with bench.running(handler, max_in_flight=1) as worker:
        await bench.put(*["t"] * 3)
        await bench.settled()
    assert worker.statistics().retried == 3
    for job in bench.jobs().acked:
        [nack] = [event for event in job.events if event.kind == "nacked"]
        assert (nack.reason, nack.seconds) == (reason, RETRY_DELAY)
    assert len(bench.jobs().acked) == 3


@pytest.mark.parametrize("way", ["ack", "nack", "hold"])
async def test_what_a_handler_settles_itself_is_counted(bench: Bench, way: str) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        if way == "ack":
            await bench.client.ack(ctx)
        elif way == "nack":
            await bench.client.nack(ctx, RetryDirective.DEAD_LETTER, "mine")
        else:
            async with bench.client.hold(ctx) as lease:
                await lease.ack()

    async with bench.running(handler) as worker:
        await bench.put(*["t"] * 5)
        await bench.settled()
    statistics = worker.statistics()
    assert (statistics.received, statistics.settled_by_handler) == (5, 5)
    assert statistics.acked == statistics.dead_lettered == statistics.retried == 0
    assert len(bench.calls.of("Ack")) + len(bench.calls.of("Nack")) == 5
