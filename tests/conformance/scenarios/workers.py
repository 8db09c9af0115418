"""What sepp-rs tests beyond that (official-clients.md 4.8), seen from outside the worker."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.conformance.configs import RETAINING
from tests.conformance.face import Ack, Delivery, Fail, NewJob
from tests.conformance.registry import LATE, scenario
from tests.conformance.wire import batch, new_job

if TYPE_CHECKING:
    from tests.conformance.face import Dead, Handled
    from tests.conformance.registry import Env


@scenario()
async def a_type_without_handler_is_nacked_once_and_comes_again_after_two_seconds(env: Env) -> None:
    queue = env.queue()

    seen: list[str] = []

    async def other(job: Handled) -> None:
        seen.append(job.id)

    (job_id, _) = await env.enqueue(NewJob(queue, "unhandled", priority=9), NewJob(queue, "other"))
    started = time.monotonic()
    async with env.face.worker([queue], {"other": other}) as worker:
        await env.eventually(lambda: bool(seen))  # so the worker has had both
        worker.shutdown()
        await worker.finished()
    # Attempt 1 is nacked for 2 s (2 to the power of the attempt); its lease was to end after 10 s.
    job = await env.reserve_one(queue, wait=15.0)
    assert (job.id, job.attempt) == (job_id, 2)
    assert 2.0 < time.monotonic() - started < 9.0


@scenario()
async def a_handler_that_fails_badly_does_not_stop_the_others(env: Env) -> None:
    queue = env.queue()
    seen: list[tuple[str, int]] = []

    async def bad(job: Handled) -> None:
        seen.append(("bad", job.attempt))
        if job.attempt == 1:
            raise ZeroDivisionError

    async def good(job: Handled) -> None:
        seen.append(("good", job.attempt))

    async with env.face.worker([queue], {"bad": bad, "good": good}):
        await env.enqueue(NewJob(queue, "bad"), NewJob(queue, "good"))
        await env.eventually(lambda: len(seen) == 3)
    assert sorted(seen) == [("bad", 1), ("bad", 2), ("good", 1)]


@scenario()
async def a_lost_lease_aborts_the_handler_and_does_not_block_the_drain(env: Env) -> None:
    queue = env.queue()
    started: list[str] = []
    completed: list[str] = []
    operator = await env.connect()

    async def handler(job: Handled) -> None:
        started.append(job.id)
        await env.sleep(40.0)
        completed.append(job.id)

    async with env.face.worker([queue], {"task": handler}, lease=6.0, auto_extend_interval=1.5):
        await env.enqueue(NewJob(queue))
        await env.eventually(lambda: bool(started))
        # Taken away behind the worker's back, for longer than until its next heartbeat.
        await operator.nack(_held(queue, started[0]), 6.0)
        await env.sleep(2.2)
    assert completed == []
    job = await env.reserve_one(queue, wait=12.0)
    assert (job.id, job.attempt) == (started[0], 2)
    await env.face.ack(job)


def _held(queue: str, job_id: str) -> Delivery:
    return Delivery(job_id, queue, "task", None, 0, 1, 3, {}, None, 0, 0, None)


@scenario()
async def retry_after_keeps_the_job_away_for_so_long(env: Env) -> None:
    queue = env.queue()
    times: list[float] = []

    async def handler(job: Handled) -> None:
        times.append(time.monotonic())
        if job.attempt == 1:
            raise Fail("retry_after", "later", 2.0)

    async with env.face.worker([queue], {"task": handler}):
        await env.enqueue(NewJob(queue))
        await env.eventually(lambda: len(times) == 2)
    assert 1.8 < times[1] - times[0] < 2.0 + LATE


@scenario()
async def a_limit_of_two_never_runs_three(env: Env) -> None:
    queue = env.queue()
    running = most = done = 0

    async def handler(job: Handled) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await env.eventually(lambda: most > 1)
        await env.sleep(0.2)
        running -= 1
        done += 1

    await env.enqueue(*[NewJob(queue)] * 4)
    async with env.face.worker([queue], {"task": handler}, max_in_flight=2):
        await env.eventually(lambda: done == 4)
    assert most == 2


@scenario()
async def a_shutdown_during_a_job_waits_for_it_and_leaves_nothing(env: Env) -> None:
    queue = env.queue()
    started: list[str] = []
    completed: list[str] = []

    async def handler(job: Handled) -> None:
        started.append(job.id)
        await env.sleep(0.8)
        completed.append(job.id)

    await env.enqueue(NewJob(queue))
    async with env.face.worker([queue], {"task": handler}) as worker:
        await env.eventually(lambda: bool(started))
        worker.shutdown()
        await worker.finished()
    assert completed == started
    assert await env.is_empty(queue)


@scenario(config=RETAINING)
async def a_permanent_failure_is_a_dead_letter_with_its_reason(env: Env) -> None:
    queue = env.queue()

    async def handler(job: Handled) -> None:
        raise Fail("permanent", "poison")

    await env.enqueue(NewJob(queue))
    dead: list[Dead] = []
    async with env.face.worker([queue], {"task": handler}):
        deadline = env.loop.now() + 15
        while not dead:
            dead = await env.face.drain(queue)
            assert env.loop.now() < deadline
            await env.sleep(0.05)
    assert (dead[0].cause, dead[0].final_attempt, dead[0].last_reason) == ("rejected", 1, "poison")


@scenario()
async def a_handler_can_extend_its_own_lease(env: Env) -> None:
    queue = env.queue()
    attempts: list[int] = []
    expiries: list[int] = []

    async def handler(job: Handled) -> None:
        attempts.append(job.attempt)
        expiries.append(await job.extend(20.0))
        await env.sleep(5.5)

    await env.enqueue(NewJob(queue))
    before = time.time() * 1000
    async with env.face.worker([queue], {"task": handler}, lease=5.0) as worker:
        await env.eventually(lambda: bool(expiries))
        worker.shutdown()
        await worker.finished()
    assert attempts == [1]
    assert expiries[0] > before + 19_000
    assert await env.is_empty(queue)


@scenario()
async def an_empty_idempotency_key_is_refused(env: Env) -> None:
    response = await env.face.call("EnqueueBatch", batch(new_job(env.queue(), idempotency_key="")))
    assert response.results[0].rejection.WhichOneof("reason") == "invalid_request"


@scenario()
async def workers_share_a_queue_and_do_each_job_once(env: Env) -> None:
    queue = env.queue()
    seen: list[str] = []

    async def handler(job: Handled) -> None:
        seen.append(job.id)

    async with (
        env.face.worker([queue], {"task": handler}, max_in_flight=4),
        env.face.worker([queue], {"task": handler}, max_in_flight=4),
    ):
        results = await env.face.enqueue_batch([NewJob(queue)] * 200)
        await env.eventually(lambda: len(seen) == 200)
        await env.sleep(0.2)
    assert sorted(seen) == sorted(r.job_id for r in results if isinstance(r, Ack))
    assert await env.is_empty(queue)


@scenario()
async def an_idle_worker_takes_a_new_job_at_once(env: Env) -> None:
    queue = env.queue()
    times: list[float] = []

    async def handler(job: Handled) -> None:
        times.append(time.monotonic())

    async with env.face.worker([queue], {"task": handler}, wait=8.0):
        await env.sleep(0.5)
        started = time.monotonic()
        await env.enqueue(NewJob(queue))
        await env.eventually(lambda: bool(times))
        assert times[0] - started < LATE
