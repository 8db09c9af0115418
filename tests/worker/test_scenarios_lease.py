"""Faults of the official workers (spec/official-clients.md 6.2): leases and heartbeats."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
import trio
from grpclib.const import Status

from sepp_trio import (
    BrokerConfig,
    EnqueueRequest,
    JobCtx,
    LimitsConfig,
    Payload,
    SeppClient,
    open_client,
    wire,
)
from sepp_trio.testing import (
    Acked,
    Answer,
    BlackHole,
    Delay,
    Fail,
    FaultPlan,
    FragileServer,
    JobHistory,
    LoseReply,
    Recorder,
    open_fragile_server,
    run_handler,
)
from sepp_trio.wire import records
from tests.worker.bench import Bench
from tests.worker.helpers import Watched, at_once, running, sleeper, until, worker_on


@asynccontextmanager
async def fragile(
    ahead: float = 0.0, config: BrokerConfig | None = None
) -> AsyncIterator[tuple[FragileServer, Recorder, SeppClient]]:
    """A server whose clock is so many seconds ahead of ours, its jobs, and a client of it."""
    recorder = Recorder()
    epoch_ms = int((time.time() + ahead) * 1000)
    async with (
        open_fragile_server(config, epoch_ms=epoch_ms, recorder=recorder) as server,
        open_client(server.connect) as client,
    ):
        yield server, recorder, client


def beats(job: JobHistory) -> list[float]:
    """When its lease was extended."""
    return [event.at for event in job.extends]


def gaps(times: list[float]) -> Iterator[float]:
    return (later - earlier for earlier, later in pairwise(times))


async def test_01_a_hanging_extend_does_not_outlive_the_lease(bench: Bench) -> None:
    handler = Watched()
    async with bench.running(handler, 30, auto_extend=True, shutdown_grace=0):
        await bench.put("t", max_attempts=1)
        bench.inject(BlackHole(5, 40))
        await until(lambda: handler.cancelled)
        await trio.sleep(30)
    # The lease ends 30 s after its grant; half a second of it is left.
    assert 29 <= handler.cancelled[0] - handler.began[0] <= 30
    assert handler.reasons == ["lease lost"]
    assert bench.calls.of("Ack") == bench.calls.of("Nack") == ()
    assert bench.jobs().expired


@pytest.mark.parametrize("ahead", [0.0, 3600.0, -3600.0, 20.0, -20.0])
async def test_02_03_the_servers_clock_may_be_anywhere(ahead: float) -> None:
    async with fragile(ahead) as (_, recorder, client):
        worker = worker_on(client, 6, auto_extend=True)
        handler = Watched(14)
        worker.handle("t", handler)
        async with running(worker):
            await client.enqueue(EnqueueRequest("emails", "t"))
            await recorder.settled()
        [job] = recorder.jobs().acked
    assert job.attempt == 1
    assert handler.cancelled == []
    # Every 2 s, whatever the clock.
    assert 6 <= len(beats(job)) <= 8
    assert all(1.9 < gap < 2.2 for gap in gaps(beats(job)))


@pytest.mark.parametrize("ahead", [0.0, 3600.0, -3600.0])
async def test_03_the_deadline_is_the_servers_whatever_its_clock(ahead: float) -> None:
    async with fragile(ahead) as (_, recorder, client):
        worker = worker_on(client, 3)
        handler = Watched()
        worker.handle("t", handler)
        async with running(worker):
            await trio.sleep(1.5)
            await client.enqueue(EnqueueRequest("emails", "t", max_attempts=1))
            [job] = await recorder.until(lambda jobs: jobs.leased)
            await recorder.settled()
    # Not later than the server's end, and not much sooner.
    assert job.lease_deadline is not None
    assert job.lease_deadline - 0.2 < handler.cancelled[0] < job.lease_deadline


async def test_04_a_failed_beat_is_repeated_while_the_lease_lasts(bench: Bench) -> None:
    bench.inject(
        Fail("Extend", 1),
        Fail("Extend", 2, Status.INTERNAL),
        Fail("Extend", 3, Status.UNAUTHENTICATED),
    )
    async with bench.running(sleeper(10), 3, auto_extend_interval=2.2):
        await bench.put("t")
        await bench.settled()
    assert bench.jobs().acked[0].attempt == 1
    first = bench.calls.times("Extend")[0]
    quick = [at for at in bench.calls.times("Extend") if at < first + 0.6]
    assert len(quick) == 4  # three failures, then good


async def test_04_an_interval_not_shorter_than_the_lease_is_refused(bench: Bench) -> None:
    with pytest.raises(ValueError, match="auto_extend_interval must be shorter than"):
        bench.worker(3, auto_extend_interval=3)


async def test_05_the_heartbeat_goes_on_during_a_slow_ack() -> None:
    outcome = await run_handler(
        sleeper(0.5),
        lease_duration=3,
        auto_extend=True,
        faults=FaultPlan((Delay("Ack", request=9.0),)),
    )
    assert outcome == Acked()
    assert outcome.attempt == 1  # the server has seen the ack within the lease
    assert len(outcome.extends) >= 2


async def test_06_an_ack_is_repeated_until_the_lease_ends(bench: Bench) -> None:
    statuses = (Status.UNAVAILABLE, Status.INTERNAL, Status.UNAUTHENTICATED, Status.UNKNOWN)
    bench.inject(*[Fail("Ack", n, status) for n, status in enumerate(statuses, 1)])
    async with bench.running(at_once, 10) as worker:
        await bench.put("t")
        await bench.settled()
    assert bench.jobs().acked[0].attempt == 1
    assert len(bench.calls.of("Ack")) == 5
    assert bench.calls.of("Nack") == ()
    assert worker.statistics().acked == 1


async def test_06_not_found_after_a_repeat_means_that_the_ack_arrived(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.inject(LoseReply("Ack"))
    async with bench.running(at_once, 10) as worker:
        await bench.put("t")
        await until(lambda: worker.statistics().acked)
    assert [(call.end, call.status) for call in bench.calls.of("Ack")] == [
        ("lost", Status.OK.value),
        ("answered", Status.NOT_FOUND.value),
    ]
    assert worker.statistics().lost == 0
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


async def test_06_not_found_at_once_means_that_the_lease_was_lost(bench: Bench) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await bench.lose_lease(ctx)

    async with bench.running(handler, 10) as worker:
        await bench.put("t", max_attempts=1)
        await until(lambda: worker.statistics().lost)
    [ack] = bench.calls.of("Ack")
    assert ack.status == Status.NOT_FOUND.value
    assert worker.statistics().acked == 0


async def test_06_what_cannot_be_acked_is_given_up_at_the_end_of_the_lease(bench: Bench) -> None:
    bench.inject(Fail("Ack", times=None))
    async with bench.running(at_once, 4) as worker:
        await bench.put("t", max_attempts=1)
        await until(lambda: worker.statistics().unreported)
        assert trio.current_time() <= 4.1
    # Quickly, but not in a hot loop.
    assert 4 < len(bench.calls.of("Ack")) < 40


async def test_13_no_kind_of_failure_stops_the_heartbeat() -> None:
    wrong = wire.encode(records.ExtendResponse("x", None))
    faults = [
        fault
        for n in range(1, 26, 4)
        for fault in (
            Fail("Extend", n, Status.DATA_LOSS),
            Answer("Extend", n + 1, b"\xff\xff"),
            Answer("Extend", n + 2, wrong),
        )
    ]
    outcome = await run_handler(
        sleeper(60), lease_duration=6, auto_extend=True, faults=FaultPlan(tuple(faults))
    )
    assert outcome == Acked()
    assert outcome.attempt == 1
    assert len(outcome.happened) == len(faults)


@pytest.mark.parametrize(
    ("max_attempts", "status"), [(1, Status.NOT_FOUND), (2, Status.FAILED_PRECONDITION)]
)
async def test_a_definite_answer_cancels_the_handler_at_once(
    bench: Bench, max_attempts: int, status: Status
) -> None:
    """The job is gone, or somebody has its next attempt."""
    worker = bench.worker(60, auto_extend=True)
    handler = Watched()
    worker.handle("t", handler)
    async with running(worker):
        await bench.put("t", max_attempts=max_attempts)
        await until(lambda: handler.began)
        worker.replace_handler("t", sleeper(100))
        [job] = bench.jobs().leased
        await bench.lose_lease(job)
        await until(lambda: handler.cancelled)
        assert bench.calls.of("Extend")[0].status == status.value
        assert handler.cancelled[0] - bench.calls.times("Extend")[0] < 0.01
        await bench.put("t")
        await bench.settled()
    assert len(bench.jobs().acked) == max_attempts
    assert handler.reasons == ["lease lost"]
    assert bench.calls.of("Nack") == ()


async def test_19_the_heartbeat_never_shortens_what_the_handler_extended(bench: Bench) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await ctx.extend(200)
        while trio.current_time() < 400:
            assert abs(ctx.lease_deadline - (bench.job(ctx.id).lease_deadline or 0)) < 0.1
            await trio.sleep(1)

    async with bench.running(handler, 9, auto_extend=True):
        await bench.put("t")
        await bench.settled()
    [job] = bench.jobs().acked
    assert job.attempt == 1
    ends = [event.until for event in job.extends]
    assert ends == sorted(ends)
    assert beats(job)[1] > 190  # not before a beat would lengthen the lease


async def test_20_an_extend_through_the_client_is_the_same_as_one_through_the_context(
    bench: Bench,
) -> None:
    seen: list[bool] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        expiry = await bench.client.extend(ctx, 100)
        seen.append(ctx.lease_expires_at == expiry)
        seen.append(99 < ctx.remaining() <= 100)
        await trio.sleep(50)

    async with bench.running(handler, 9, auto_extend=True):
        await bench.put("t")
        await bench.settled()
    assert seen == [True, True]
    assert [event.asked for event in bench.jobs().acked[0].extends] == [100]


async def test_21_without_auto_extend_a_handler_is_cancelled_when_its_lease_ends(
    bench: Bench,
) -> None:
    worker = bench.worker(10)
    handler = Watched()
    worker.handle("t", handler)
    async with running(worker):
        await bench.put("t", max_attempts=1)
        await bench.settled()
    assert 9.5 < handler.cancelled[0] < 10
    assert handler.reasons == ["lease lost"]
    assert bench.calls.of("Ack") == bench.calls.of("Nack") == bench.calls.of("Extend") == ()
    assert worker.statistics().lost == 1


async def test_a_lease_may_be_shorter_than_was_asked_for() -> None:
    def at_most(milliseconds: int) -> BrokerConfig:
        return BrokerConfig(limits=LimitsConfig(max_lease_duration_ms=milliseconds))

    async with fragile(config=at_most(600)) as (server, recorder, client):
        worker = worker_on(client, 60, auto_extend=True)
        worker.handle("t", sleeper(2))
        async with running(worker):
            await client.enqueue(EnqueueRequest("emails", "t"))
            await recorder.until(lambda jobs: jobs and jobs[0].extends)
            await server.restart(0.01, config=at_most(300))
            await recorder.settled()
    [job] = recorder.jobs().acked
    assert job.attempt == 1
    assert 0.15 < beats(job)[0] < 0.4
    # A third of what was granted last.
    assert all(gap < 0.15 for gap in list(gaps(beats(job)))[2:])


async def test_a_long_job_is_extended_all_along() -> None:
    outcome = await run_handler(sleeper(600), lease_duration=10, auto_extend=True)
    assert outcome == Acked()
    assert outcome.attempt == 1
    assert 60 <= len(outcome.extends) <= 200


async def test_a_stale_delivery_is_not_started(bench: Bench) -> None:
    """A reserve's answer that was stuck on the way until its leases were over."""
    worker = bench.worker(3, wait_timeout=20, auto_extend=True)
    handler = Watched(1)
    worker.handle("t", handler)
    async with running(worker):
        await trio.sleep(0.5)
        bench.inject(BlackHole(0, 3.3))
        await trio.sleep(0.1)
        await bench.put("t")
        await bench.settled()
    [job] = bench.jobs().acked
    assert (job.attempt, job.expiries, job.nack_reasons) == (2, 1, ())
    assert len(handler.began) == worker.statistics().lost == 1


async def test_hold_and_worker_share_one_lease(bench: Bench) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        async with bench.client.hold(ctx) as lease:
            await trio.sleep(5)
            await lease.ack()

    async with bench.running(handler, 3, auto_extend=True):
        await bench.put("t")
        await bench.settled()
    assert bench.jobs().acked[0].attempt == 1
    assert len(bench.calls.of("Ack")) == 1
    # One heartbeat, not two.
    assert 4 <= len(bench.calls.of("Extend")) <= 6
