"""Sections 3.6, 4.3, 4.4: which job comes first, and what a reserve does to it."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tests.conformance.face import NewJob
from tests.conformance.registry import LATE, scenario
from tests.conformance.wire import batch, new_job, pb, reserve_request

if TYPE_CHECKING:
    from tests.conformance.registry import Env

# Jobs of one millisecond come in the order of their random ids: so many apart, they do not.
APART = 0.01


async def _enqueue_apart(env: Env, *jobs: NewJob) -> list[str]:
    ids = []
    for job in jobs:
        ids += await env.enqueue(job)
        await env.sleep(APART)
    return ids


@scenario()
async def equal_jobs_come_first_in_first_out_across_milliseconds(env: Env) -> None:
    queue = env.queue()
    ids = await _enqueue_apart(env, *[NewJob(queue)] * 12)
    jobs = await env.face.reserve([queue], max_jobs=6)
    jobs += await env.face.reserve([queue], max_jobs=6)
    assert [job.id for job in jobs] == ids
    times = [job.enqueued_ms for job in jobs]
    assert times == sorted(times)


@scenario()
async def a_higher_priority_comes_first(env: Env) -> None:
    queue = env.queue()
    order = [3, 0, 9, 5, 9, 1, 0, 7]
    await _enqueue_apart(env, *[NewJob(queue, f"{n}", priority=p) for n, p in enumerate(order)])
    jobs = await env.face.reserve([queue], max_jobs=20)
    expected = sorted(range(len(order)), key=lambda n: (-order[n], n))
    assert [int(job.job_type) for job in jobs] == expected
    assert [job.priority for job in jobs] == sorted(order, reverse=True)


@scenario()
async def queues_are_emptied_in_the_order_listed_and_an_answer_mixes_them(env: Env) -> None:
    first, second, third = (env.queue(label) for label in "abc")
    await env.enqueue(NewJob(third, priority=9), NewJob(third))
    await env.enqueue(NewJob(first), NewJob(first), NewJob(second, priority=9))
    queues = [first, second, third]
    jobs = await env.face.reserve(queues, max_jobs=4)
    assert [job.queue for job in jobs] == [first, first, second, third]
    assert jobs[3].priority == 9
    (last,) = await env.face.reserve(queues, max_jobs=4)
    assert (last.queue, last.priority) == (third, 0)


@scenario()
async def priority_does_not_reach_across_queues(env: Env) -> None:
    first, second = env.queue("a"), env.queue("b")
    await env.enqueue(NewJob(first, priority=0), NewJob(second, priority=9))
    assert (await env.face.reserve([first, second]))[0].queue == first
    assert (await env.face.reserve([first, second]))[0].queue == second


@scenario()
async def a_nacked_job_goes_back_to_the_head_of_its_priority(env: Env) -> None:
    queue = env.queue()
    first, second, _ = await _enqueue_apart(env, *[NewJob(queue)] * 3)
    job = await env.reserve_one(queue)
    assert job.id == first
    await env.face.nack(job, 0.0)
    again = await env.reserve_one(queue)
    assert (again.id, again.attempt, again.enqueued_ms) == (first, 2, job.enqueued_ms)
    assert (await env.reserve_one(queue)).id == second


@scenario()
async def a_leased_job_is_not_given_to_anyone_else(env: Env) -> None:
    queue = env.queue()
    await env.enqueue(NewJob(queue))
    await env.reserve_one(queue)
    other = await env.connect()
    assert await other.reserve([queue]) == []


@scenario()
async def a_lease_counts_from_the_reserve_and_is_exact_to_the_millisecond(env: Env) -> None:
    queue = env.queue()
    await env.enqueue(NewJob(queue))
    before = int(time.time() * 1000)
    job = await env.reserve_one(queue, lease=7.003)
    after = int(time.time() * 1000)
    assert before <= job.lease_expires_ms - 7003 <= after
    assert job.enqueued_ms <= after


@scenario()
async def a_scheduled_job_is_invisible_until_its_time(env: Env) -> None:
    queue = env.queue()
    due = time.time() + 4.0
    at = datetime.fromtimestamp(round(due, 3), tz=UTC)
    await env.enqueue(NewJob(queue, scheduled_at=at))
    assert await env.is_empty(queue)
    job = await env.reserve_one(queue, wait=10.0)
    assert -0.05 < time.time() - due < LATE
    assert job.attempt == 1
    assert job.scheduled_ms == (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


@scenario()
async def a_past_schedule_is_ready_at_once(env: Env) -> None:
    queue = env.queue()
    await env.enqueue(NewJob(queue, scheduled_at=datetime(2001, 2, 3, tzinfo=UTC)))
    job = await env.reserve_one(queue, wait=0.0)
    assert job.scheduled_ms == 981_158_400_000


@scenario()
async def a_schedule_is_echoed_exactly_as_sent(env: Env) -> None:
    now = int(time.time())
    cases = [
        (now - 5, 123_456_789),
        (-1, 5),
        (-(2**40), 0),
        (now, -999_999_999),
        (0, 0),
        (7, 2**31 - 1),
    ]
    for seconds, nanos in cases:
        queue = env.queue()
        job = new_job(queue)
        job.scheduled_at.SetInParent()
        job.scheduled_at.seconds = seconds
        job.scheduled_at.nanos = nanos
        response = await env.face.call("EnqueueBatch", batch(job))
        assert response.results[0].WhichOneof("outcome") == "success", (seconds, nanos)
        (got,) = (await env.face.call("Reserve", reserve_request(queue, wait=3.0))).jobs
        assert got.HasField("scheduled_at")
        assert (got.scheduled_at.seconds, got.scheduled_at.nanos) == (seconds, nanos)


@scenario()
async def a_schedule_loses_its_digits_below_a_millisecond_only_for_the_timer(env: Env) -> None:
    # Less than a millisecond ahead counts as now: the rest is cut off.
    queue = env.queue()
    job = new_job(queue)
    job.scheduled_at.FromMilliseconds(int(time.time() * 1000) - 1)
    job.scheduled_at.nanos += 999_999
    await env.face.call("EnqueueBatch", pb.EnqueueBatchRequest(jobs=[job]))
    assert len(await env.face.reserve([queue])) == 1


@scenario()
async def a_promoted_job_keeps_its_place_by_enqueue_time(env: Env) -> None:
    queue = env.queue()
    at = datetime.fromtimestamp(time.time() + 0.6, tz=UTC)
    ids = await _enqueue_apart(env, NewJob(queue, scheduled_at=at), NewJob(queue), NewJob(queue))
    await env.sleep(0.6 + LATE)
    jobs = await env.face.reserve([queue], max_jobs=9)
    assert [job.id for job in jobs] == ids


@scenario()
async def scheduled_jobs_are_promoted_each_at_its_own_time(env: Env) -> None:
    queue = env.queue()
    now = time.time()
    await env.enqueue(
        *[
            NewJob(queue, f"{n}", scheduled_at=datetime.fromtimestamp(now + after, tz=UTC))
            for n, after in ((2, 5.0), (1, 0.5))
        ]
    )
    assert (await env.reserve_one(queue)).job_type == "1"
    assert time.time() - now < 5.0
    assert (await env.reserve_one(queue, wait=10.0)).job_type == "2"
    assert time.time() - now >= 4.99
