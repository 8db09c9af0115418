"""Sections 4.5, 4.6: waiting, waking, and reserves whose caller has left."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tests.conformance.configs import LIMITS
from tests.conformance.face import NewJob
from tests.conformance.registry import scenario
from tests.conformance.wire import reserve_request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.conformance.face import Delivery
    from tests.conformance.registry import Env

PARKED = 0.3  # long enough for a reserve to have reached the server and to wait there
PROMPT = 5.0  # of 10: whoever answers within it did not wait for the end
SEEN = 2.0  # after which the server has seen the end of another connection, or of its own patience


async def _wakes(env: Env, queue: str, cause: Callable[[], Awaitable[object]]) -> Delivery:
    """A parked reserve of `queue` is answered soon after `cause`."""
    waiting = env.start(_reserve, env, [queue])
    await env.sleep(PARKED)
    assert not waiting.done
    started = env.loop.now()
    await cause()
    (job,) = await waiting.result()
    assert env.loop.now() - started < PROMPT
    return job


async def _reserve(env: Env, queues: list[str], wait: float = 10.0) -> list[Delivery]:
    return await env.face.reserve(queues, wait=wait, max_jobs=10)


@scenario()
async def no_wait_answers_an_empty_queue_at_once(env: Env) -> None:
    started = env.loop.now()
    assert await env.face.reserve([env.queue()]) == []
    assert env.loop.now() - started < PROMPT


@scenario()
async def a_wait_in_vain_ends_empty_at_its_time(env: Env) -> None:
    started = env.loop.now()
    assert await env.face.reserve([env.queue()], wait=0.6) == []
    assert 0.59 <= env.loop.now() - started < 0.6 + PROMPT


@scenario(config=LIMITS)
async def a_long_wait_is_cut_to_the_maximum(env: Env) -> None:
    started = env.loop.now()
    assert await env.face.reserve([env.queue()], wait=10.0) == []
    assert 0.39 <= env.loop.now() - started < 0.4 + PROMPT


@scenario()
async def a_wait_does_not_hold_out_for_more_jobs(env: Env) -> None:
    queue = env.queue()
    await env.enqueue(NewJob(queue), NewJob(queue))
    started = env.loop.now()
    assert len(await env.face.reserve([queue], wait=10.0, max_jobs=3)) == 2
    assert env.loop.now() - started < PROMPT


@scenario()
async def an_enqueue_wakes_a_waiting_reserve(env: Env) -> None:
    queue = env.queue()
    await _wakes(env, queue, lambda: env.enqueue(NewJob(queue)))


@scenario()
async def an_atomic_enqueue_wakes_a_waiting_reserve(env: Env) -> None:
    queue = env.queue()
    await _wakes(env, queue, lambda: env.face.enqueue_atomic([NewJob(queue)]))


@scenario()
async def a_nack_without_delay_wakes_a_waiting_reserve(env: Env) -> None:
    queue = env.queue()
    await env.enqueue(NewJob(queue))
    job = await env.reserve_one(queue)
    again = await _wakes(env, queue, lambda: env.face.nack(job, 0.0))
    assert (again.id, again.attempt) == (job.id, 2)


@scenario()
async def a_promotion_wakes_a_waiting_reserve(env: Env) -> None:
    queue = env.queue()
    due = time.time() + 0.8
    await env.enqueue(NewJob(queue, scheduled_at=datetime.fromtimestamp(due, tz=UTC)))
    assert len(await env.face.reserve([queue], wait=10.0)) == 1
    assert -0.05 < time.time() - due < PROMPT


@scenario()
async def a_delayed_nack_wakes_a_waiting_reserve_when_it_is_due(env: Env) -> None:
    queue = env.queue()
    await env.enqueue(NewJob(queue))
    job = await env.reserve_one(queue)
    started = env.loop.now()  # the delay begins before the nack is answered
    await env.face.nack(job, 0.8)
    assert len(await env.face.reserve([queue], wait=10.0)) == 1
    assert 0.79 < env.loop.now() - started < 0.8 + PROMPT


@scenario()
async def an_expired_lease_wakes_a_waiting_reserve(env: Env) -> None:
    queue = env.queue()
    await env.enqueue(NewJob(queue))
    job = await env.reserve_one(queue, lease=1.0)
    (again,) = await env.face.reserve([queue], wait=10.0)
    assert (again.id, again.attempt) == (job.id, 2)
    assert -50 < time.time() * 1000 - job.lease_expires_ms < 1000 * PROMPT


@scenario()
async def any_of_several_queues_wakes_a_waiting_reserve(env: Env) -> None:
    queues = [env.queue(label) for label in "abc"]
    for queue in queues:
        waiting = env.start(_reserve, env, queues)
        await env.sleep(PARKED)
        await env.enqueue(NewJob(queue))
        (job,) = await waiting.result()
        assert job.queue == queue


@scenario()
async def one_job_goes_to_one_waiter_and_the_others_wait_on(env: Env) -> None:
    queue = env.queue()
    waiting = [env.start(_reserve, env, [queue]) for _ in range(5)]
    await env.sleep(PARKED)
    await env.enqueue(NewJob(queue))
    await env.eventually(lambda: any(task.done for task in waiting))
    await env.sleep(0.5)
    assert sum(task.done for task in waiting) == 1
    for count in range(2, 6):
        await env.enqueue(NewJob(queue))
        await env.eventually(lambda count=count: sum(t.done for t in waiting) == count)  # type: ignore[misc]
    ids = [job.id for task in waiting for job in await task.result()]
    assert len(set(ids)) == 5


@scenario()
async def a_loser_of_the_race_keeps_its_own_deadline(env: Env) -> None:
    queue = env.queue()
    started = env.loop.now()
    waiting = [env.start(_reserve, env, [queue], 5.0) for _ in range(2)]
    await env.sleep(1.0)
    await env.enqueue(NewJob(queue))
    results = [await task.result() for task in waiting]
    assert sorted(map(len, results)) == [0, 1]
    assert 4.9 < env.loop.now() - started < 5.0 + PROMPT


@scenario()
async def jobs_in_one_batch_reach_many_waiters(env: Env) -> None:
    queue = env.queue()

    async def one() -> list[Delivery]:
        return await env.face.reserve([queue], wait=10.0)

    waiting = [env.start(one) for _ in range(40)]
    await env.sleep(PARKED)
    ids = await env.enqueue(*[NewJob(queue)] * 40)
    got = [(await task.result())[0].id for task in waiting]
    assert sorted(got) == sorted(ids)


@scenario()
async def many_reserves_wait_on_one_connection(env: Env) -> None:
    queue = env.queue()

    async def one() -> int:
        return len((await env.face.call("Reserve", reserve_request(queue, wait=6.0))).jobs)

    waiting = [env.start(one) for _ in range(400)]
    await env.sleep(0.5)
    (job_id,) = await env.enqueue(NewJob(queue))
    assert job_id
    counts = [await task.result() for task in waiting]
    assert sum(counts) == 1


@scenario()
async def a_cancelled_waiting_reserve_leases_nothing(env: Env) -> None:
    queue = env.queue()
    waiting = env.start(_reserve, env, [queue])
    await env.sleep(PARKED)
    waiting.cancel()
    await waiting.settled()  # a client may wait for an answer that is under way
    await env.sleep(PARKED)
    await env.enqueue(NewJob(queue))
    job = await env.reserve_one(queue, wait=PROMPT)
    assert job.attempt == 1


@scenario()
async def a_waiting_reserve_whose_connection_closed_leases_nothing(env: Env) -> None:
    queue = env.queue()

    async def wait_elsewhere() -> None:
        async with env.connector(env.server.address, api_key=None) as other:
            await other.reserve([queue], wait=10.0)

    waiting = env.start(wait_elsewhere)
    await env.sleep(PARKED)
    waiting.cancel()
    await waiting.settled()
    await env.sleep(SEEN)
    await env.enqueue(NewJob(queue))
    assert (await env.reserve_one(queue, wait=PROMPT)).attempt == 1


@scenario()
async def a_waiting_reserve_whose_deadline_passed_leases_nothing(env: Env) -> None:
    queue = env.queue()
    waiting = env.start(_call_with_deadline, env, queue)
    await waiting.settled()
    await env.sleep(SEEN)
    await env.enqueue(NewJob(queue))
    assert (await env.reserve_one(queue, wait=PROMPT)).attempt == 1


async def _call_with_deadline(env: Env, queue: str) -> None:
    await env.face.call("Reserve", reserve_request(queue, wait=10.0), timeout=0.5)


@scenario()
async def a_dead_waiter_does_not_swallow_the_wake_of_a_live_one(env: Env) -> None:
    queue = env.queue()
    first = env.start(_reserve, env, [queue])
    await env.sleep(PARKED)
    second = env.start(_reserve, env, [queue])
    await env.sleep(PARKED)
    first.cancel()
    await first.settled()
    await env.sleep(PARKED)
    await env.enqueue(NewJob(queue))
    assert len(await second.result()) == 1
