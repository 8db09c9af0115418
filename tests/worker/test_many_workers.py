"""Several workers, many jobs, a user's own tasks: nothing is stranded, nothing runs twice."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime

import pytest
import trio

from sepp_trio import (
    BrokerConfig,
    DeadLetterCause,
    EnqueueRequest,
    HandlerError,
    JobCtx,
    LimitsConfig,
    Payload,
    ReserveOptions,
)
from sepp_trio.testing import open_recording_broker, run_handler
from tests.worker.bench import Bench
from tests.worker.helpers import given_back, running, sleeper, until, worker_on


class Log:
    """A handler that takes ``seconds`` and counts how many run a job at once, at most."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.runs = 0
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def __call__(self, payload: Payload | None, ctx: JobCtx) -> None:
        self.runs += 1
        self.now[ctx.id] += 1
        self.most[ctx.id] = max(self.most[ctx.id], self.now[ctx.id])
        try:
            await trio.sleep(self.seconds)
        finally:
            self.now[ctx.id] -= 1


async def test_04_stopping_at_any_moment_strands_nothing(bench: Bench) -> None:
    """Trial 4 (a)."""
    rng = random.Random(4)
    await bench.put(*["t"] * 100, max_attempts=9)
    for _ in range(21):
        worker = bench.worker(60, max_in_flight=4, auto_extend=True, wait_timeout=0.1)
        worker.handle("t", sleeper(0.02))
        async with running(worker):
            await trio.sleep(rng.random() * 0.06)
            worker.shutdown(rng.choice([None, None, 0.01]))
        assert not bench.jobs().leased
    async with bench.running(sleeper(0.02), 60, max_in_flight=4, wait_timeout=0.1):
        with trio.fail_after(5):
            await bench.settled()
    assert len(bench.jobs().acked) == 100
    assert not bench.jobs().expired


async def test_05_a_draining_worker_keeps_its_leases(bench: Bench) -> None:
    log = Log(1.5)
    await bench.put(*["t"] * 4)
    workers = [bench.worker(0.3, auto_extend=True, wait_timeout=0.2) for _ in range(2)]
    for worker in workers:
        worker.handle("t", log)
    async with running(workers[0]):
        await trio.sleep(0.1)
        workers[0].shutdown()
        async with running(workers[1]):
            await until(lambda: workers[0].statistics().state == "stopped")
            await trio.sleep(1)
    assert workers[0].statistics().acked == log.runs == 4
    assert [job.attempt for job in bench.jobs().acked] == [1] * 4


async def test_15_72_long_jobs_run_once_on_short_leases(bench: Bench) -> None:
    log = Log(2)
    await bench.put(*["t"] * 10)
    workers = [
        bench.worker(0.2, max_in_flight=4, auto_extend=True, wait_timeout=0.2) for _ in range(3)
    ]
    for worker in workers:
        worker.handle("t", log)
    async with running(workers[0]), running(workers[1]), running(workers[2]):
        await bench.settled()
    assert trio.current_time() < 20
    assert len(bench.jobs().acked) == log.runs == 10
    assert set(log.most.values()) == {1}


async def test_72_without_auto_extend_the_handler_is_cancelled_before_the_next_run(
    bench: Bench,
) -> None:
    log = Log(2)
    await bench.put("t", max_attempts=3)
    workers = [bench.worker(0.3, wait_timeout=0.2) for _ in range(2)]
    for worker in workers:
        worker.handle("t", log)
    async with running(workers[0]), running(workers[1]):
        await bench.settled()
    [job] = bench.jobs().dead_letters
    assert (job.attempt, job.expiries) == (3, 3)
    assert job.cause is DeadLetterCause.LEASE_EXPIRED
    assert log.runs == 3
    assert set(log.most.values()) == {1}


@pytest.mark.parametrize("max_attempts", [1, 3])
async def test_52_an_interruption_says_so(bench: Bench, max_attempts: int) -> None:
    async with bench.running(sleeper(1000), 60, wait_timeout=0.1) as worker:
        await bench.put("t", max_attempts=max_attempts)
        await trio.sleep(1)
        worker.shutdown(0.3)
    [job] = bench.jobs()
    if max_attempts == 1:
        assert job.cause is DeadLetterCause.ATTEMPTS_EXHAUSTED
        assert job.nack_reasons == ("interrupted: shutdown grace over",)
    else:
        assert given_back(job, "shutdown grace over")
        assert job.attempt == 2


async def test_a_failed_job_comes_back_at_once() -> None:
    """The official integration scenarios of nacks, without their two seconds."""
    attempts: list[int] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            raise HandlerError.retry("once more")
        if ctx.attempt == 2:
            raise RuntimeError("and again")
        assert ctx.is_last_attempt

    async with open_recording_broker() as broker, broker.open_client() as client:
        worker = worker_on(client)
        worker.handle("t", handler)
        async with running(worker):
            await client.enqueue(EnqueueRequest("emails", "t"))
            await broker.settled()
            assert trio.current_time() < 0.2
    assert attempts == [1, 2, 3]
    assert broker.jobs().acked


async def test_workers_and_a_users_own_tasks_share_a_client_and_a_nursery(bench: Bench) -> None:
    async def by_hand() -> None:
        while True:
            for job in await bench.client.reserve(ReserveOptions(["hand"], 5, wait_timeout=1)):
                async with bench.client.hold(job) as lease:
                    await trio.sleep(0.1)
                    await lease.ack()

    async with trio.open_nursery() as nursery:
        for queue in ("emails", "letters"):
            worker = bench.worker(5, queues=[queue], auto_extend=True, max_in_flight=8)
            worker.handle("t", sleeper(0.05))
            await nursery.start(worker.run)
        nursery.start_soon(by_hand)
        for queue in ["emails", "letters", "hand"] * 50:
            await bench.client.enqueue(EnqueueRequest(queue, "t"))
        await bench.settled()
        nursery.cancel_scope.cancel()
    assert [job.deliveries for job in bench.jobs().acked] == [1] * 150
    assert len(bench.client._keeper) == 0


async def test_many_more_jobs_than_slots_all_end(bench: Bench) -> None:
    rng = random.Random(1)
    done: Counter[str] = Counter()

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(rng.random() * 0.05)
        if rng.random() < 0.2:
            raise HandlerError.retry_after("bad luck", 0)
        done[ctx.id] += 1

    async with bench.broker.open_client() as client:
        ids = await bench.put(*["t"] * 500, max_attempts=50)
        worker = worker_on(client, 2, max_in_flight=32, auto_extend=True)
        worker.handle("t", handler)
        async with running(worker):
            await bench.settled()
        assert sorted(done) == sorted(ids)
        assert set(done.values()) == {1}
        final = worker.statistics()
        assert (final.acked, final.received) == (500, 500 + final.retried)
        assert (final.in_flight, final.waiting, final.reporting) == (0, 0, 0)
        assert len(client._keeper) == 0


async def test_a_lease_that_ends_beyond_all_datetimes_does_not_cost_the_job() -> None:
    ends = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        ends.append(ctx.lease_expires_at)

    config = BrokerConfig(limits=LimitsConfig(max_lease_duration_ms=10**15))
    await run_handler(handler, lease_duration=3e11, config=config)
    assert ends == [datetime.max.replace(tzinfo=UTC)]
