"""The recording broker: its histories, the waiting for them, and leases that are taken away."""

from __future__ import annotations

import inspect
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

from sepp_trio import (
    BrokerConfig,
    DeadLetterCause,
    EnqueueRequest,
    Job,
    JobNotFoundError,
    LimitsConfig,
    Payload,
    ReserveOptions,
    RetryDirective,
    SeppClient,
    ServerInternalError,
    StorageConfig,
    open_client,
)
from sepp_trio.broker.engine import Lease
from sepp_trio.testing import (
    Jobs,
    Recorder,
    RecordingBroker,
    open_fragile_server,
    open_recording_broker,
)
from sepp_trio.testing._limits import limit_of


@asynccontextmanager
async def recording(
    path: Path | None = None,
) -> AsyncIterator[tuple[RecordingBroker, SeppClient]]:
    async with open_recording_broker(path) as broker, broker.open_client() as client:
        yield broker, client


async def take(client: SeppClient, queue: str = "q", worker_id: str | None = None) -> Job:
    """The next job, which must be there."""
    [job] = await client.reserve(ReserveOptions([queue], 30, wait_timeout=0, worker_id=worker_id))
    return job


@pytest.fixture(params=["memory", "file"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "jobs.db" if request.param == "file" else None


# ---- histories ----


async def test_a_job_is_known_from_its_enqueue_on(path: Path | None) -> None:
    async with recording(path) as (broker, client):
        assert not broker.jobs()
        ack = await client.enqueue(
            EnqueueRequest("q", "t", Payload.json(1), priority=4, custom={"a": 2}, max_attempts=7)
        )
        [job] = broker.jobs()
        assert job is broker.job(ack.job_id)
        assert (job.id, job.queue, job.job_type, job.priority) == (ack.job_id, "q", "t", 4)
        assert (job.payload, job.custom) == (Payload.json(1), {"a": 2})
        assert (job.state, job.attempt, job.max_attempts) == ("ready", 1, 7)
        assert (job.is_done, job.deliveries, job.done_at) == (False, 0, None)
        for unknown in ("00000000-0000-0000-0000-000000000000", "nope"):
            with pytest.raises(KeyError, match=f"there is no job {unknown}"):
                broker.job(unknown)


@pytest.mark.trio(run=trio.run)
async def test_a_file_on_the_real_clock_is_recorded_from_its_thread(tmp_path: Path) -> None:
    async with recording(tmp_path / "jobs.db") as (broker, client):
        await client.enqueue_batch([EnqueueRequest("q", "t")] * 3)
        for _ in range(3):
            await client.ack(await take(client))
        await broker.settled()
        assert len(broker.jobs().acked) == 3


async def test_a_snapshot_stays_as_it_is(path: Path | None) -> None:
    async with recording(path) as (broker, client):
        await client.enqueue(EnqueueRequest("q", "t"))
        before = broker.jobs()
        held = await take(client, worker_id="w")
        assert (before[0].state, len(before.ready)) == ("ready", 1)
        [job] = broker.jobs().leased
        assert (job.worker_id, job.lease_deadline) == ("w", 30)
        await trio.sleep(5)
        await client.extend(held, 100)
        assert broker.jobs()[0].lease_deadline == 105
        assert [event.asked for event in broker.jobs()[0].extends] == [100]
        await client.ack(held)
        [job] = broker.jobs().acked
        assert (job.worker_id, job.lease_deadline, job.done_at) == (None, None, 5)


async def test_a_nack_is_told_with_its_reason_and_its_delay(path: Path | None) -> None:
    async with recording(path) as (broker, client):
        await client.enqueue(EnqueueRequest("q", "t", max_attempts=2))
        await client.nack(await take(client), RetryDirective.after(20), "busy")
        [job] = broker.jobs().scheduled
        assert (job.attempt, job.nack_reasons) == (2, ("busy",))
        assert (job.events[-1].until, job.events[-1].seconds) == (20, 20)
        await broker.until(lambda jobs: jobs.ready)
        assert trio.current_time() == 20
        await client.nack(await take(client), RetryDirective.after(20), "still busy")
        [job] = broker.jobs().dead_letters
        assert (job.attempt, job.deliveries) == (2, 2)
        assert job.cause is DeadLetterCause.ATTEMPTS_EXHAUSTED
        assert job.nack_reasons == ("busy", "still busy")
        assert repr(job) == "<'t' in 'q', dead letter, attempt 2/2, attempts_exhausted: still busy>"


async def test_a_lease_that_runs_out_is_told(path: Path | None) -> None:
    async with recording(path) as (broker, client):
        await client.enqueue(EnqueueRequest("q", "t", max_attempts=2))
        await take(client)
        await broker.until(lambda jobs: jobs.expired)
        assert trio.current_time() == 30
        [job] = broker.jobs().ready
        assert (job.attempt, job.expiries) == (2, 1)
        await take(client)
        await broker.settled()
        [job] = broker.jobs().dead_letters
        assert job.cause is DeadLetterCause.LEASE_EXPIRED
        assert broker.jobs().expired == broker.jobs()
        assert [event.kind for event in job.events[-2:]] == ["expired", "dead-lettered"]


async def test_a_lease_that_is_given_back_is_no_delivery() -> None:
    async with recording() as (broker, client):
        await client.enqueue(EnqueueRequest("q", "t"))
        held = await take(client)
        lease = Lease(uuid.UUID(held.id).bytes, held.attempt, b"")
        broker._committer.give_back([lease])  # as for an answer that nobody took
        [job] = await broker.until(lambda jobs: jobs.ready)
        assert (job.attempt, job.deliveries, job.lease_deadline) == (1, 0, None)
        assert [event.kind for event in job.events] == ["enqueued", "leased", "given back"]


async def test_drained_dead_letters_stay_known() -> None:
    config = BrokerConfig(storage=StorageConfig(dead_letter_retention_ms=1000))
    async with (
        open_recording_broker(config=config) as broker,
        broker.open_client() as client,
    ):
        for _ in range(2):
            await client.enqueue(EnqueueRequest("q", "t"))
            await client.nack(await take(client), RetryDirective.DEAD_LETTER, "no")
        [_] = await client.drain_dead_letters()
        await trio.sleep(10)
        assert not await client.drain_dead_letters()
        first, second = broker.jobs().dead_letters
        assert (first.events[-1].kind, second.events[-1].kind) == ("drained", "dead-lettered")


async def test_what_is_refused_changes_nothing() -> None:
    config = BrokerConfig(limits=LimitsConfig(max_queue_depth=1))
    async with (
        open_recording_broker(config=config) as broker,
        broker.open_client() as client,
    ):
        await client.enqueue(EnqueueRequest("q", "t", idempotency_key="k"))
        await client.enqueue(EnqueueRequest("q", "t", idempotency_key="k"))
        [_] = await client.enqueue_batch([EnqueueRequest("q", "t")])
        held = await take(client)
        await broker.lose_lease(held)
        before = broker.jobs()
        for call in (client.ack, client.nack):
            with pytest.raises(JobNotFoundError):
                await call(held)
        with pytest.raises(JobNotFoundError):
            await client.extend(held, 5)
        assert broker.jobs() == before
        assert len(before) == 1


# ---- sequences ----


async def test_jobs_are_filtered_and_compared() -> None:
    async with recording() as (broker, client):
        for queue, job_type in [("a", "x"), ("b", "x"), ("a", "y"), ("b", "y"), ("a", "x")]:
            await client.enqueue(EnqueueRequest(queue, job_type))
        jobs = broker.jobs()
        assert [job.queue for job in jobs] == ["a", "b", "a", "b", "a"]
        assert len(broker.jobs("a")) == 3
        assert len(broker.jobs("a", job_type="x")) == 2
        assert broker.jobs(job_type="y") == jobs.where(lambda job: job.job_type == "y")
        assert jobs[1:3] == broker.jobs()[1:3]
        assert jobs != list(jobs)
        assert len({jobs, broker.jobs()}) == 1
        assert jobs[0] in jobs.ready
        assert not jobs.acked


async def test_jobs_say_what_they_are() -> None:
    async with recording() as (broker, client):
        assert repr(broker.jobs()) == str(broker.jobs()) == "<no jobs>"
        await client.enqueue(EnqueueRequest("q", "t"))
        await take(client, worker_id="w")
        await trio.sleep(1)
        assert repr(broker.jobs()) == "<jobs: <'t' in 'q', leased, attempt 1/3, held by w>>"
        assert str(broker.jobs()).splitlines()[1:] == [
            "  0.000 enqueued, attempt 1",
            "  0.000 leased, attempt 1, by w, until 30.000",
        ]
        for _ in range(9):
            await client.enqueue(EnqueueRequest("q", "t"))
        assert repr(broker.jobs()) == "<10 jobs: 1 leased, 9 ready>"


# ---- waiting ----


async def test_settled_waits_for_the_queue_that_is_asked_about() -> None:
    async with recording() as (broker, client), trio.open_nursery() as nursery:
        await broker.settled()
        await client.enqueue(EnqueueRequest("a", "t"))
        await client.enqueue(EnqueueRequest("b", "t"))

        async def work(queue: str, seconds: float) -> None:
            job = await take(client, queue)
            await trio.sleep(seconds)
            await client.ack(job)

        nursery.start_soon(work, "a", 5)
        nursery.start_soon(work, "b", 9)
        await broker.settled("c")
        assert trio.current_time() == 0
        await broker.settled("a")
        assert trio.current_time() == 5
        await broker.settled()
        assert trio.current_time() == 9


async def test_until_looks_after_every_commit() -> None:
    async with recording() as (broker, client), trio.open_nursery() as nursery:
        seen: list[int] = []

        def three(jobs: object) -> bool:
            seen.append(len(broker.jobs("q")))
            return seen[-1] == 3

        async def enqueue() -> None:
            for _ in range(4):
                await trio.sleep(1)
                await client.enqueue(EnqueueRequest("q", "t"))

        nursery.start_soon(enqueue)
        jobs = await broker.until(three, "q")
        assert (len(jobs), seen, trio.current_time()) == (3, [0, 1, 2, 3], 3)


async def test_waiting_may_be_cancelled() -> None:
    async with recording() as (broker, client):
        await client.enqueue(EnqueueRequest("q", "t"))
        with trio.move_on_after(5) as scope:
            await broker.settled()
        assert scope.cancelled_caught
        with pytest.raises(trio.TooSlowError), trio.fail_after(5):
            await broker.until(lambda jobs: jobs.acked)


async def test_a_wait_over_its_limit_says_which_jobs_are_open() -> None:
    async with recording() as (broker, client):
        for queue in ("q", "q", "others"):
            await client.enqueue(EnqueueRequest(queue, "t"))
        await client.ack(await take(client))
        await broker.settled("nothing", limit=1)
        assert await broker.until(lambda jobs: jobs.acked, limit=1) == broker.jobs()
        before = trio.current_time()
        with pytest.raises(trio.TooSlowError) as caught:
            await broker.settled("q", limit=5)
        assert trio.current_time() - before == pytest.approx(5)
        [left] = broker.jobs("q").ready
        assert str(caught.value) == f"within the limit of 5 s not all jobs were done:\n{left}"
        with pytest.raises(trio.TooSlowError) as caught:
            await broker.until(lambda jobs: jobs.leased, "others", limit=timedelta(seconds=2))
        assert str(caught.value) == (
            f"within the limit of 2 s the predicate did not hold:\n{broker.jobs('others')}"
        )


async def test_a_wait_for_what_never_comes_ends_without_a_limit_given() -> None:
    async with recording() as (broker, client):
        await client.enqueue(EnqueueRequest("q", "t"))
        with pytest.raises(trio.TooSlowError, match=r"limit of 3600 s .*\n<'t' in 'q', ready"):
            await broker.settled()
        with pytest.raises(trio.TooSlowError, match="limit of 3600 s the predicate did not hold"):
            await broker.until(lambda jobs: jobs.acked)


def test_on_a_real_clock_it_is_a_minute() -> None:
    async def main() -> tuple[float, float]:
        return limit_of(None), limit_of(5)

    assert trio.run(main) == (60, 5)


async def _ask(broker: RecordingBroker, method: str, *args: Any, **options: Any) -> None:
    result = getattr(broker, method)(*args, **options)
    if inspect.isawaitable(result):
        await result


@pytest.mark.parametrize(
    ("method", "args", "options", "words"),
    [
        ("job", (3,), {}, "job_id must be a string, not int"),
        ("jobs", (["q"],), {}, "queue must be a string, not list"),
        ("jobs", (), {"job_type": 3}, "job_type must be a string, not int"),
        ("settled", (["q"],), {}, "queue must be a string, not list"),
        ("settled", (), {"limit": "1"}, "limit must be seconds or a timedelta, not str"),
        ("until", (3,), {}, "predicate must be a function, not int"),
        ("until", (len, 3), {}, "queue must be a string, not int"),
        ("until", (len,), {"limit": "1"}, "limit must be seconds or a timedelta, not str"),
        ("lose_lease", ("x",), {}, "job must have an id and an attempt, as a Job has, not 'x'"),
    ],
)
async def test_what_is_of_a_wrong_type_is_refused_by_name(
    method: str, args: Any, options: Any, words: str
) -> None:
    async with recording() as (broker, _):
        with pytest.raises(TypeError, match=words):
            await _ask(broker, method, *args, **options)


async def _async_predicate(jobs: Jobs) -> bool:
    return len(jobs) == 0


@pytest.mark.parametrize(
    ("predicate", "words"),
    [
        (_async_predicate, "predicate must not be async"),
        (lambda jobs: None, "predicate returned None: it has to say whether it holds"),
        (lambda jobs: str.split, "predicate returned the function str.split, and has not called"),
    ],
)
async def test_a_predicate_that_says_nothing_is_refused(predicate: Any, words: str) -> None:
    async with recording() as (broker, client):
        with pytest.raises(TypeError, match=words):
            await broker.until(predicate)
        await client.enqueue(EnqueueRequest("q", "t"))
        with pytest.raises(TypeError, match=words):
            broker.jobs().where(predicate)


async def test_a_predicate_may_answer_with_what_is_true_or_not() -> None:
    async with recording() as (broker, client):
        await client.enqueue(EnqueueRequest("q", "t"))
        assert len(await broker.until(lambda jobs: jobs.ready)) == 1
        assert len(await broker.until(lambda jobs: len(jobs))) == 1
        assert not broker.jobs().where(lambda job: job.expiries)


# ---- leases taken away ----


async def test_a_lease_is_taken_away(path: Path | None) -> None:
    async with recording(path) as (broker, client):
        await client.enqueue(EnqueueRequest("q", "t", max_attempts=2))
        held = await take(client)
        await broker.lose_lease(held)
        [job] = broker.jobs().ready
        assert (job.attempt, job.expiries) == (2, 1)
        with pytest.raises(JobNotFoundError, match=r"attempt 1 of job .* is not leased"):
            await broker.lose_lease(held)
        with pytest.raises(JobNotFoundError, match="attempt 2 of job nope is not leased"):
            await broker.lose_lease(replace(job, id="nope"))
        again = await take(client)
        assert again.attempt == 2
        with pytest.raises(JobNotFoundError):
            await broker.lose_lease(held)
        await broker.lose_lease(broker.jobs()[0])
        [job] = broker.jobs().dead_letters
        assert job.cause is DeadLetterCause.LEASE_EXPIRED
        assert not broker.statistics().queues


async def test_who_waits_gets_the_job_whose_lease_was_taken_away() -> None:
    async with recording() as (broker, client), trio.open_nursery() as nursery:
        await client.enqueue(EnqueueRequest("q", "t"))
        held = await take(client)
        nursery.start_soon(client.reserve, ReserveOptions(["q"], 30, worker_id="next"))
        await trio.sleep(1)
        await broker.lose_lease(held)
        [job] = await broker.until(lambda jobs: jobs.leased)
        assert (job.attempt, job.worker_id) == (2, "next")


# ---- restarts ----


async def test_histories_go_on_over_restarts() -> None:
    recorder = Recorder()
    async with (
        open_fragile_server(recorder=recorder) as server,
        open_client(server.connect) as client,
    ):
        await client.enqueue(EnqueueRequest("q", "t"))
        held = await take(client)
        await server.restart(5)
        with trio.fail_after(20):
            await client.ack(held)
        await recorder.settled()
        [job] = recorder.jobs().acked
        assert [event.kind for event in job.events] == ["enqueued", "leased", "acked"]
        assert recorder.job(job.id) == job


async def test_leases_of_a_server_that_is_down_cannot_be_taken_away() -> None:
    recorder = Recorder()
    async with (
        open_fragile_server(recorder=recorder) as server,
        open_client(server.connect) as client,
        trio.open_nursery() as nursery,
    ):
        await client.enqueue(EnqueueRequest("q", "t"))
        held = await take(client)
        nursery.start_soon(server.restart, 5)
        await trio.sleep(1)
        with pytest.raises(OSError, match="the server is down"):
            await server.lose_lease(held)
        await trio.sleep(10)
        await server.lose_lease(held)
        assert recorder.jobs()[0].expiries == 1


async def test_what_was_in_the_file_is_known(tmp_path: Path) -> None:
    config = BrokerConfig(storage=StorageConfig(dead_letter_retention_ms=10**9))
    file = tmp_path / "jobs.db"
    async with (
        open_recording_broker(file, config=config) as broker,
        broker.open_client() as client,
    ):
        for job_type in ("leased", "later", "dead", "done", "ready"):
            await client.enqueue(EnqueueRequest("q", job_type))
        await take(client)
        await client.nack(await take(client), RetryDirective.after(500), "busy")
        await client.nack(await take(client), RetryDirective.DEAD_LETTER, "no")
        await client.ack(await take(client))
        before = broker.jobs()
    async with open_recording_broker(file, config=config) as broker:
        found = broker.jobs()
        assert [(job.id, job.state, job.attempt, job.cause) for job in found] == [
            (job.id, job.state, job.attempt, job.cause) for job in before if job.state != "acked"
        ]
        assert [job.events[0].kind for job in found] == ["found"] * 4
        assert found.dead_letters[0].events[-1].reason == "no"
        assert found.leased[0].lease_deadline == pytest.approx(30, abs=2)
        assert broker.statistics().queues == {"q": 3}


async def test_what_was_rolled_back_has_not_happened(path: Path | None) -> None:
    async with recording(path) as (broker, client):
        connection = broker._store._connection
        connection.execute(
            "CREATE TEMP TRIGGER full BEFORE INSERT ON main.ready"
            " BEGIN SELECT RAISE(ROLLBACK, 'no room'); END"
        )
        with pytest.raises(ServerInternalError):
            await client.enqueue(EnqueueRequest("q", "t"))
        assert not broker.jobs()
        connection.execute("DROP TRIGGER full")
        await client.enqueue(EnqueueRequest("q", "t"))
        assert len(broker.jobs().ready) == 1
