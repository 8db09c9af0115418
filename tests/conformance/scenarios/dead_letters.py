"""Section 6: dead letters, their order, draining and retention."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tests.conformance.configs import LIMITS, RETAINING, SHORT_RETENTION, SHORTLY, SMALL_SWEEPS
from tests.conformance.face import NewJob, refused
from tests.conformance.registry import LATE, scenario
from tests.conformance.wire import batch, new_job, pb, reserve_request

if TYPE_CHECKING:
    from tests.conformance.registry import Env

APART = 0.01


async def _bury(env: Env, queue: str, reason: str = "", **fields: Any) -> str:
    """Make one dead letter; its id."""
    await env.enqueue(NewJob(queue, **fields))
    job = await env.reserve_one(queue)
    assert await env.face.nack(job, "dead_letter", reason)
    return job.id


@scenario()
async def an_empty_queue_name_and_a_maximum_of_zero_are_invalid(env: Env) -> None:
    for request in (pb.DrainDeadLettersRequest(queue=""), pb.DrainDeadLettersRequest(max=0)):
        with refused("INVALID_ARGUMENT"):
            await env.face.call("DrainDeadLetters", request)


@scenario(config=RETAINING)
async def any_other_queue_name_may_be_drained(env: Env) -> None:
    for name in (".", "..", "a/b", "a\nb", "q" * 1000, env.queue()):
        response = await env.face.call("DrainDeadLetters", pb.DrainDeadLettersRequest(queue=name))
        assert not response.records


@scenario(config=RETAINING)
async def a_dead_letter_holds_the_job_as_it_was(env: Env) -> None:
    queue = env.queue()
    trace = ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=1")
    at = datetime(2001, 2, 3, tzinfo=UTC)
    before = time.time() * 1000
    await env.enqueue(
        NewJob(queue, "kind", (b"data", "raw"), "key", 6, 4, {"k": "v", "n": 1}, trace, at)
    )
    job = await env.reserve_one(queue)
    await env.face.nack(job, "dead_letter", "because")
    (dead,) = await env.face.drain(queue)
    assert (dead.id, dead.queue, dead.job_type) == (job.id, queue, "kind")
    assert (dead.payload, dead.priority, dead.max_attempts) == ((b"data", "raw"), 6, 4)
    assert (dead.custom, dead.trace) == ({"k": "v", "n": 1}, trace)
    assert (dead.enqueued_ms, dead.scheduled_ms) == (job.enqueued_ms, job.scheduled_ms)
    assert (dead.cause, dead.final_attempt, dead.last_reason) == ("rejected", 1, "because")
    assert before - 50 < dead.failed_ms < time.time() * 1000 + 50


@scenario(config=RETAINING)
async def the_job_in_a_dead_letter_has_its_last_attempt_and_a_lease_of_the_epoch(env: Env) -> None:
    queue = env.queue()
    await env.face.call("EnqueueBatch", batch(new_job(queue, max_attempts=2)))
    job = await env.reserve_one(queue)
    await env.face.nack(job, 0.0)
    await env.face.nack(await env.reserve_one(queue), 0.0)
    response = await env.face.call("DrainDeadLetters", pb.DrainDeadLettersRequest(queue=queue))
    (record,) = response.records
    assert (record.job.attempt, record.final_attempt, record.cause) == (2, 2, 1)
    assert record.job.HasField("lease_expires_at")
    assert (record.job.lease_expires_at.seconds, record.job.lease_expires_at.nanos) == (0, 0)
    assert record.HasField("failed_at")
    assert not record.HasField("last_reason")
    assert record.job.queue == queue
    assert not any(record.job.HasField(f) for f in ("payload", "trace_context", "scheduled_at"))


@scenario(config=RETAINING)
async def a_dead_letter_keeps_the_schedule_exactly_as_sent(env: Env) -> None:
    queue = env.queue()
    job = new_job(queue)
    job.scheduled_at.seconds = 7
    job.scheduled_at.nanos = 123_456_789
    await env.face.call("EnqueueBatch", batch(job))
    (got,) = (await env.face.call("Reserve", reserve_request(queue))).jobs
    request = pb.NackRequest(job_id=got.id, attempt=1)
    request.retry.dead_letter.SetInParent()
    await env.face.call("Nack", request)
    response = await env.face.call("DrainDeadLetters", pb.DrainDeadLettersRequest(queue=queue))
    assert response.records[0].job.scheduled_at == job.scheduled_at


@scenario(config=RETAINING)
async def draining_takes_one_oldest_first_and_for_good(env: Env) -> None:
    queue = env.queue()
    ids = []
    for _ in range(4):
        ids.append(await _bury(env, queue))
        await env.sleep(APART)
    first = await env.face.call("DrainDeadLetters", pb.DrainDeadLettersRequest(queue=queue))
    assert [record.job.id for record in first.records] == ids[:1]
    rest = await env.face.drain(queue, 10)
    assert [dead.id for dead in rest] == ids[1:]
    assert await env.face.drain(queue, 10) == []


@scenario(config=RETAINING)
async def a_filtered_drain_leaves_other_queues_alone(env: Env) -> None:
    first, second = env.queue("a"), env.queue("b")
    ids = [await _bury(env, queue) for queue in (first, second, first)]
    assert [dead.id for dead in await env.face.drain(second, 9)] == [ids[1]]
    assert {dead.id for dead in await env.face.drain(first, 9)} == {ids[0], ids[2]}


@scenario(config=RETAINING, own_server=True)
async def an_unfiltered_drain_takes_every_queue_by_age(env: Env) -> None:
    queues = [env.queue(label) for label in ("zz", "a", "m")]
    ids = []
    for queue in queues:
        ids.append(await _bury(env, queue))
        await env.sleep(APART)
    assert [dead.id for dead in await env.face.drain(None, 2)] == ids[:2]
    assert [dead.id for dead in await env.face.drain(None, 2)] == ids[2:]


@scenario(config=RETAINING, own_server=True)
async def an_unfiltered_drain_finds_dead_letters_of_one_moment_in_all_queues(env: Env) -> None:
    # Jobs whose leases end in one sweep have one failed_at; no order is promised among them.
    queues = ["bb", "a", "ccc", "aa", "b"]
    await env.enqueue(*[NewJob(q, max_attempts=1) for q in queues for _ in range(3)])
    jobs = await env.face.reserve(queues, lease=1.0, max_jobs=20)
    deadline = env.loop.now() + 15
    while not (dead := await env.face.drain(None, 20)):
        assert env.loop.now() < deadline
        await env.sleep(0.05)
    assert sorted((d.queue, d.id) for d in dead) == sorted((j.queue, j.id) for j in jobs)
    assert len(dead) == 15
    assert len({d.failed_ms for d in dead}) == 1


@scenario(config=LIMITS + "[storage]\ndead_letter_retention_ms = 3600000\n")
async def draining_is_cut_to_the_reserve_batch(env: Env) -> None:
    queue = env.queue()
    for _ in range(4):
        await _bury(env, queue)
    assert len(await env.face.drain(queue, 1000)) == 3
    assert len(await env.face.drain(queue, 1000)) == 1


@scenario(config=SMALL_SWEEPS, own_server=True)
async def a_filtered_drain_looks_at_no_more_than_the_sweep_limit(env: Env) -> None:
    for _ in range(5):
        await _bury(env, "older")
        await env.sleep(APART)
    wanted = await _bury(env, "younger")
    assert await env.face.drain("younger", 9) == []
    assert len(await env.face.drain("older", 1)) == 1
    assert [dead.id for dead in await env.face.drain("younger", 9)] == [wanted]


@scenario(config=SMALL_SWEEPS, own_server=True)
async def a_small_sweep_limit_delays_no_timer(env: Env) -> None:
    queue = env.queue()
    at = datetime.fromtimestamp(time.time() + 0.5, tz=UTC)
    await env.enqueue(*[NewJob(queue, scheduled_at=at)] * 60)
    await env.sleep(0.5 + LATE)
    jobs = await env.face.reserve([queue], lease=1.0, max_jobs=100)
    assert len(jobs) == 60
    await env.sleep(1.0 + LATE)
    again = await env.face.reserve([queue], max_jobs=100)
    assert {job.attempt for job in again} == {2}
    assert len(again) == 60


@scenario(config=SHORT_RETENTION)
async def a_dead_letter_is_dropped_after_its_retention(env: Env) -> None:
    queue = env.queue()
    await _bury(env, queue)
    assert len(await env.face.drain(queue, 9)) == 1
    await _bury(env, queue)
    await env.sleep(SHORTLY + LATE)
    assert await env.face.drain(queue, 9) == []


@scenario()
async def without_retention_draining_is_empty_and_no_error(env: Env) -> None:
    queue = env.queue()
    await _bury(env, queue)
    assert await env.face.drain(queue, 9) == []
    assert await env.face.drain(None, 9) == []


@scenario(config=RETAINING)
async def a_replayed_dead_letter_is_a_new_job(env: Env) -> None:
    queue = env.queue()
    old = await _bury(env, queue, payload=(b"x", "raw"), priority=3)
    (dead,) = await env.face.drain(queue)
    (new,) = await env.enqueue(
        NewJob(dead.queue, dead.job_type, dead.payload, priority=dead.priority)
    )
    job = await env.reserve_one(queue)
    assert (job.id, job.attempt, job.payload, job.priority) == (new, 1, (b"x", "raw"), 3)
    assert new != old


@scenario(config=RETAINING)
async def a_drained_job_cannot_be_acked(env: Env) -> None:
    queue = env.queue()
    await env.enqueue(NewJob(queue))
    job = await env.reserve_one(queue)
    await env.face.nack(job, "dead_letter")
    await env.face.drain(queue)
    with refused("NOT_FOUND"):
        await env.face.ack(job)
