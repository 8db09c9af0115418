"""Workers on the embedded broker: real leases, real redeliveries, on virtual time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
import trio

from sepp_trio import (
    Broker,
    BrokerConfig,
    EnqueueRequest,
    HandlerError,
    JobCtx,
    LimitsConfig,
    Payload,
    ReserveOptions,
    SeppClient,
    StorageConfig,
    Worker,
    open_broker,
)
from tests.worker.helpers import running, sleeper, until

RETAIN = BrokerConfig(storage=StorageConfig(dead_letter_retention_ms=10**9))


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with open_broker(config=RETAIN) as broker:
        yield broker


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[SeppClient]:
    async with broker.open_client() as client:
        yield client


async def enqueue(client: SeppClient, count: int, **options: object) -> list[str]:
    """Enqueue jobs of type ``t``; their ids."""
    request = EnqueueRequest("q", "t", Payload(b"x", "raw"), **options)  # type: ignore[arg-type]
    acks = await client.enqueue_atomic([request] * count)
    return [ack.job_id for ack in acks]


async def ready(client: SeppClient) -> list[tuple[str, int]]:
    """Take all jobs that are ready now: id and attempt."""
    jobs = await client.reserve(ReserveOptions(["q"], 300, wait_timeout=0, max_jobs=256))
    return [(job.id, job.attempt) for job in jobs]


class Log:
    """A handler that takes ``seconds`` and remembers its runs."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.runs: Counter[tuple[str, int]] = Counter()
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    async def __call__(self, payload: Payload | None, ctx: JobCtx) -> None:
        self.runs[ctx.id, ctx.attempt] += 1
        self.now[ctx.id] += 1
        self.most[ctx.id] = max(self.most[ctx.id], self.now[ctx.id])
        try:
            await trio.sleep(self.seconds)
        finally:
            self.now[ctx.id] -= 1


async def test_04_stopping_at_any_moment_strands_nothing(client: SeppClient) -> None:
    """Trial 4 (a)."""
    rng = random.Random(4)
    log = Log(0.02)
    ids = await enqueue(client, 100)
    for _ in range(21):
        worker = Worker(client, ["q"], 60, max_in_flight=4, auto_extend=True, wait_timeout=0.1)
        worker.handle("t", log)
        async with trio.open_nursery() as nursery:
            await nursery.start(worker.run)
            await trio.sleep(rng.random() * 0.06)
            worker.shutdown(rng.choice([None, None, 0.01]))
        # What it gave back is there at once.
    worker = Worker(client, ["q"], 60, max_in_flight=4, wait_timeout=0.1)
    worker.handle("t", log)
    async with running(worker):
        await until(lambda: not client_jobs(client, log, ids), 5)
    assert trio.current_time() < 10
    assert await ready(client) == []


def client_jobs(client: SeppClient, log: Log, ids: list[str]) -> set[str]:
    """Jobs that no handler has seen to its end."""
    return {job_id for job_id in ids if not any((job_id, n) in log.runs for n in range(1, 9))}


async def test_05_a_draining_worker_keeps_its_leases(client: SeppClient) -> None:
    log = Log(1.5)
    await enqueue(client, 4)
    workers = [Worker(client, ["q"], 0.3, auto_extend=True, wait_timeout=0.2) for _ in range(2)]
    for worker in workers:
        worker.handle("t", log)
    async with trio.open_nursery() as nursery:
        await nursery.start(workers[0].run)
        await trio.sleep(0.1)
        workers[0].shutdown()
        await nursery.start(workers[1].run)
        await until(lambda: workers[0].statistics().state == "stopped")
        await trio.sleep(1)
        workers[1].shutdown()
    assert set(log.runs.values()) == {1}
    assert {attempt for _, attempt in log.runs} == {1}
    assert workers[0].statistics().acked == 4


async def test_15_72_long_jobs_run_once_on_short_leases(broker: Broker) -> None:
    log = Log(2)
    async with broker.open_client() as client, trio.open_nursery() as nursery:
        await enqueue(client, 10)
        workers = []
        for _ in range(3):
            worker = Worker(client, ["q"], 0.2, max_in_flight=4, auto_extend=True, wait_timeout=0.2)
            worker.handle("t", log)
            await nursery.start(worker.run)
            workers.append(worker)
        await until(lambda: sum(worker.statistics().acked for worker in workers) == 10, 20)
        for worker in workers:
            worker.shutdown()
    assert set(log.most.values()) == {1}
    assert {attempt for _, attempt in log.runs} == {1}


async def test_72_without_auto_extend_the_handler_is_cancelled_before_the_next_run(
    client: SeppClient,
) -> None:
    log = Log(2)
    await enqueue(client, 1, max_attempts=3)
    workers = [Worker(client, ["q"], 0.3, wait_timeout=0.2) for _ in range(2)]
    for worker in workers:
        worker.handle("t", log)
    async with running(workers[0]), running(workers[1]):
        await trio.sleep(3)
    assert [attempt for _, attempt in log.runs] == [1, 2, 3]
    assert set(log.most.values()) == {1}
    [record] = await client.drain_dead_letters(max_records=5)
    assert record.cause.name == "LEASE_EXPIRED"  # type: ignore[union-attr]


@pytest.mark.parametrize(("max_attempts", "dead"), [(1, True), (3, False)])
async def test_52_an_interruption_says_so(
    client: SeppClient, max_attempts: int, dead: bool
) -> None:
    [job_id] = await enqueue(client, 1, max_attempts=max_attempts)
    worker = Worker(client, ["q"], 60, wait_timeout=0.1)
    worker.handle("t", sleeper(1000))
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        await trio.sleep(1)
        worker.shutdown(0.3)
    letters = await client.drain_dead_letters(max_records=5)
    if dead:
        [record] = letters
        assert record.last_reason == "interrupted: shutdown grace over"  # type: ignore[union-attr]
        assert record.cause.name == "ATTEMPTS_EXHAUSTED"  # type: ignore[union-attr]
    else:
        assert letters == []
        assert await ready(client) == [(job_id, 2)]


async def test_a_failed_job_comes_back_at_once(client: SeppClient) -> None:
    """The official integration scenarios of nacks, without their two seconds."""
    attempts: list[int] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            raise HandlerError.retry("once more")
        if ctx.attempt == 2:
            raise RuntimeError("and again")
        assert ctx.is_last_attempt

    [_] = await enqueue(client, 1)
    worker = Worker(client, ["q"], 60)
    worker.handle("t", handler)
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        await until(lambda: worker.statistics().acked)
        assert trio.current_time() < 0.2
        worker.shutdown()
    assert attempts == [1, 2, 3]


async def test_workers_and_a_users_own_tasks_share_a_client_and_a_nursery(
    client: SeppClient,
) -> None:
    log = Log(0.05)
    other = Log(0.05)
    held = 0
    workers = []

    async def by_hand() -> None:
        nonlocal held
        while True:
            for job in await client.reserve(ReserveOptions(["hand"], 5, wait_timeout=1)):
                async with client.hold(job) as lease:
                    await trio.sleep(0.1)
                    await lease.ack()
                    held += 1

    async with trio.open_nursery() as nursery:
        for queue, handler in (("q", log), ("r", other)):
            worker = Worker(client, [queue], 5, auto_extend=True, max_in_flight=8)
            worker.handle("t", handler)
            await nursery.start(worker.run)
            workers.append(worker)
        nursery.start_soon(by_hand)
        for queue in ["q", "r", "hand"] * 50:
            await client.enqueue(EnqueueRequest(queue, "t"))
        await until(lambda: held == 50 and len(log.runs) == len(other.runs) == 50)
        nursery.cancel_scope.cancel()
    assert len(client._keeper) == 0


async def test_many_more_jobs_than_slots_all_end(client: SeppClient) -> None:
    rng = random.Random(1)
    done: Counter[str] = Counter()

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(rng.random() * 0.05)
        if rng.random() < 0.2:
            raise HandlerError.retry("bad luck")
        done[ctx.id] += 1

    config = BrokerConfig(limits=LimitsConfig(default_max_attempts=50))
    async with open_broker(config=config) as broker, broker.open_client() as client:
        ids = [job_id for _ in range(10) for job_id in await enqueue(client, 200)]
        worker = Worker(client, ["q"], 2, max_in_flight=32, auto_extend=True)
        worker.handle("t", handler)
        async with running(worker):
            await until(lambda: worker.statistics().acked == 2000)
            statistics = worker.statistics()
        assert sorted(done) == sorted(ids)
        assert set(done.values()) == {1}
        assert statistics.received == statistics.acked + statistics.retried
        final = worker.statistics()
        assert (final.in_flight, final.waiting, final.reporting) == (0, 0, 0)
        assert len(client._keeper) == 0


async def test_a_lease_that_ends_beyond_all_datetimes_does_not_cost_the_job() -> None:
    ends = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        ends.append(ctx.lease_expires_at)

    config = BrokerConfig(limits=LimitsConfig(max_lease_duration_ms=10**15))
    async with open_broker(config=config) as broker, broker.open_client() as client:
        await enqueue(client, 1)
        worker = Worker(client, ["q"], 3e11)
        worker.handle("t", handler)
        async with running(worker):
            await until(lambda: worker.statistics().acked == 1)
    assert ends == [datetime.max.replace(tzinfo=UTC)]
