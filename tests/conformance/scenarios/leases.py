"""Sections 5.1, 5.2, 5.5, 5.6: ack, extend, fencing and what happens when a lease ends."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.conformance.configs import LIMITS, RETAINING
from tests.conformance.face import Delivery, NewJob, refused
from tests.conformance.registry import LATE, scenario
from tests.conformance.wire import NOBODY, milliseconds, pb

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.conformance.registry import Env

ACTIONS = ("Ack", "Nack", "Extend")


def _request(rpc: str, job_id: str, attempt: int = 1, **fields: Any) -> Any:
    if rpc == "Extend" and "lease_duration" not in fields:
        fields["lease_duration"] = {"seconds": 10}
    return getattr(pb, f"{rpc}Request")(job_id=job_id, attempt=attempt, **fields)


def _actions(env: Env, job: Delivery) -> list[Callable[[], Awaitable[object]]]:
    return [
        lambda: env.face.ack(job),
        lambda: env.face.nack(job, 0.0),
        lambda: env.face.extend(job, 5.0),
    ]


async def _all_refused(env: Env, job: Delivery, status: str) -> None:
    for action in _actions(env, job):
        with refused(status):
            await action()


async def _leased(env: Env, queue: str, lease: float = 30.0, **fields: Any) -> Delivery:
    await env.enqueue(NewJob(queue, **fields))
    return await env.reserve_one(queue, lease=lease)


@scenario()
async def a_malformed_job_id_is_invalid(env: Env) -> None:
    bad = ["", "x", NOBODY[:-1], NOBODY + "0", NOBODY.replace("-", ""), NOBODY.replace("-", "_")]
    bad += ["g" + NOBODY[1:], "{" + NOBODY + "}", "0" * 36, "-" * 36, " " + NOBODY[1:]]
    bad += ["00000000-0000-4000-800000000-0000000", "ä" * 18]
    for rpc in ACTIONS:
        for job_id in bad:
            with refused("INVALID_ARGUMENT"):
                await env.face.call(rpc, _request(rpc, job_id))


@scenario()
async def attempt_zero_is_invalid(env: Env) -> None:
    for rpc in ACTIONS:
        with refused("INVALID_ARGUMENT"):
            await env.face.call(rpc, _request(rpc, NOBODY, 0))


@scenario()
async def an_empty_worker_id_is_invalid_and_any_other_is_not_looked_at(env: Env) -> None:
    queue = env.queue()
    for rpc in ("Extend", "Ack"):
        with refused("INVALID_ARGUMENT"):
            await env.face.call(rpc, _request(rpc, NOBODY, worker_id=""))
    with refused("INVALID_ARGUMENT"):
        await env.face.call("Nack", _request("Nack", NOBODY, worker_id=""))
    await env.enqueue(NewJob(queue))
    (job,) = await env.face.reserve([queue], worker_id="the-owner")
    await env.face.call("Extend", _request("Extend", job.id, worker_id="someone-else"))
    await env.face.call("Ack", _request("Ack", job.id, worker_id="a-third"))


@scenario()
async def an_extend_needs_a_positive_duration(env: Env) -> None:
    queue = env.queue()
    job = await _leased(env, queue)
    with refused("INVALID_ARGUMENT"):
        await env.face.call("Extend", pb.ExtendRequest(job_id=job.id, attempt=1))
    for duration in ({}, {"seconds": -1}, {"nanos": -1}, {"seconds": 1, "nanos": -1_000_000_000}):
        with refused("INVALID_ARGUMENT"):
            await env.face.call("Extend", _request("Extend", job.id, lease_duration=duration))
    await env.face.ack(job)


@scenario()
async def a_nack_with_a_retry_must_name_a_strategy_and_no_negative_delay(env: Env) -> None:
    queue = env.queue()
    job = await _leased(env, queue)
    with refused("INVALID_ARGUMENT"):
        await env.face.call("Nack", _request("Nack", job.id, retry=pb.NackRetry()))
    for delay in ({"seconds": -1}, {"nanos": -1}):
        with refused("INVALID_ARGUMENT"):
            await env.face.call("Nack", _request("Nack", job.id, retry={"delay": delay}))
    await env.face.ack(job)


@scenario()
async def the_checks_of_the_lease_calls_come_in_their_order(env: Env) -> None:
    # All answers have one code, so the order shows in the field that the message names.
    spoiled = {
        "Ack": ({}, []),
        "Nack": ({"retry": pb.NackRetry()}, [("retry", "retry")]),
        "Extend": ({"lease_duration": {"seconds": -1}}, [("lease_duration", "lease_duration")]),
    }
    for rpc, (fields, middle) in spoiled.items():
        request = _request(rpc, "not-an-id", 0, worker_id="", **fields)
        for named, field in [
            ("job_id", "job_id"),
            ("attempt", "attempt"),
            *middle,
            ("worker_id", ""),
        ]:
            with refused("INVALID_ARGUMENT", saying=named):
                await env.face.call(rpc, request)
            if field == "job_id":
                request.job_id = NOBODY
            elif field == "attempt":
                request.attempt = 1
            elif field == "retry":
                request.retry.default.SetInParent()
            elif field == "lease_duration":
                request.lease_duration.seconds = 1
            else:
                request.ClearField("worker_id")
        with refused("NOT_FOUND"):
            await env.face.call(rpc, request)


@scenario()
async def nobody_s_id_is_not_found(env: Env) -> None:
    queue = env.queue()
    job = replace(await _leased(env, queue), id=NOBODY)
    await _all_refused(env, job, "NOT_FOUND")


@scenario()
async def ids_are_looked_up_byte_by_byte(env: Env) -> None:
    queue = env.queue()
    while (job := await _leased(env, queue)).id.upper() == job.id:
        pass
    await _all_refused(env, replace(job, id=job.id.upper()), "NOT_FOUND")
    await env.face.ack(job)


@scenario()
async def a_job_that_is_ready_or_scheduled_is_not_found(env: Env) -> None:
    queue = env.queue()
    job = await _leased(env, queue)
    await env.face.nack(job, 0.0)
    for attempt in (1, 2):
        await _all_refused(env, replace(job, attempt=attempt), "NOT_FOUND")
    job = await env.reserve_one(queue)
    await env.face.nack(job, 60.0)
    for attempt in (2, 3):
        await _all_refused(env, replace(job, attempt=attempt), "NOT_FOUND")


@scenario()
async def an_acked_job_is_gone(env: Env) -> None:
    queue = env.queue()
    job = await _leased(env, queue)
    await env.face.ack(job)
    await _all_refused(env, job, "NOT_FOUND")
    assert await env.is_empty(queue)


@scenario(config=RETAINING)
async def a_dead_lettered_job_is_not_found(env: Env) -> None:
    queue = env.queue()
    job = await _leased(env, queue)
    assert await env.face.nack(job, "dead_letter")
    await _all_refused(env, job, "NOT_FOUND")


@scenario()
async def another_attempt_than_the_leased_one_is_fenced_off(env: Env) -> None:
    queue = env.queue()
    first = await _leased(env, queue)
    for attempt in (2, 3, 2**32 - 1):
        await _all_refused(env, replace(first, attempt=attempt), "FAILED_PRECONDITION")
    await env.face.nack(first, 0.0)
    second = await env.reserve_one(queue)
    await _all_refused(env, first, "FAILED_PRECONDITION")
    await env.face.ack(second)


@scenario()
async def anyone_who_knows_id_and_attempt_may_act(env: Env) -> None:
    queue = env.queue()
    job = await _leased(env, queue)
    other = await env.connect()
    await other.extend(job, 5)
    await other.ack(job)


@scenario()
async def answers_echo_the_job_id(env: Env) -> None:
    queue = env.queue()
    for rpc in ("Extend", "Nack", "Ack"):
        job = await _leased(env, queue)
        response = await env.face.call(rpc, _request(rpc, job.id))
        assert response.job_id == job.id
        if rpc == "Extend":
            assert response.HasField("lease_expires_at")
            await env.face.ack(job)
        if rpc == "Nack":
            await env.face.ack(await env.reserve_one(queue))


@scenario()
async def a_lapsed_lease_is_not_found_and_the_job_comes_again_at_once(env: Env) -> None:
    queue = env.queue()
    job = await _leased(env, queue, lease=1.0)
    await env.sleep(1.0 + LATE)
    await _all_refused(env, job, "NOT_FOUND")
    again = await env.reserve_one(queue, wait=0.0)
    assert (again.id, again.attempt, again.enqueued_ms) == (job.id, 2, job.enqueued_ms)
    await _all_refused(env, job, "FAILED_PRECONDITION")
    await env.face.ack(again)


@scenario(config=RETAINING)
async def the_last_attempt_that_lapses_is_a_dead_letter_without_reason(env: Env) -> None:
    queue = env.queue()
    job = await _leased(env, queue, max_attempts=2)
    await env.face.nack(job, 0.0, "not kept")
    job = await env.reserve_one(queue, lease=1.0)
    await env.sleep(1.0 + LATE)
    assert await env.is_empty(queue)
    (dead,) = await env.face.drain(queue)
    assert (dead.id, dead.cause, dead.final_attempt) == (job.id, "lease_expired", 2)
    assert dead.last_reason is None
    assert -50 < dead.failed_ms - job.lease_expires_ms < LATE * 1000


@scenario()
async def max_attempts_counts_deliveries_across_nacks_and_lapses(env: Env) -> None:
    queue = env.queue()
    job = await _leased(env, queue, max_attempts=3)
    await env.face.nack(job, 0.0)
    job = await env.reserve_one(queue, lease=1.0)
    again = await env.reserve_one(queue)
    assert [job.attempt, again.attempt] == [2, 3]
    assert await env.face.nack(again, 0.0)
    assert await env.is_empty(queue)


@scenario()
async def an_extend_counts_from_now_and_keeps_the_job_beyond_its_first_lease(env: Env) -> None:
    queue = env.queue()
    job = await _leased(env, queue, lease=4.0)
    await env.sleep(0.5)
    before = time.time() * 1000
    expiry = await env.face.extend(job, 8.0)
    after = time.time() * 1000
    assert before + 7950 < expiry < after + 8050
    await env.sleep(4.0)
    assert await env.is_empty(queue)
    await env.face.ack(job)


@scenario()
async def an_extend_can_shorten_a_lease(env: Env) -> None:
    queue = env.queue()
    job = await _leased(env, queue, lease=60.0)
    expiry = await env.face.extend(job, 0.5)
    assert expiry < job.lease_expires_ms
    again = await env.reserve_one(queue)
    assert (again.id, again.attempt) == (job.id, 2)


@scenario()
async def a_lease_can_be_extended_again_and_again(env: Env) -> None:
    queue = env.queue()
    job = await _leased(env, queue, lease=5.0)
    for _ in range(5):
        await env.sleep(1.1)
        await env.face.extend(job, 5.0)
    assert await env.is_empty(queue)
    await env.face.ack(job)


@scenario(config=LIMITS)
async def an_extend_is_cut_to_the_maximum_of_the_job_s_own_queue(env: Env) -> None:
    cases = [(env.queue(), 20.0), (env.declared("patient"), 40.0), (env.declared("roomy"), 5.0)]
    for queue, seconds in cases:
        await env.enqueue(NewJob(queue, "a"))
        # Reserved among others: only the job's own queue counts for the extend.
        (job,) = await env.face.reserve([env.queue("empty"), queue])
        assert job.queue == queue
        for asked in (1000.0, seconds):
            before = time.time() * 1000
            expiry = await env.face.extend(job, asked)
            after = time.time() * 1000
            assert before + seconds * 1000 - 50 < expiry < after + seconds * 1000 + 50
        await env.face.ack(job)


@scenario(config=LIMITS)
async def an_extend_beyond_the_maximum_has_the_same_refusals(env: Env) -> None:
    queue = env.queue()
    job = await _leased(env, queue)
    with refused("NOT_FOUND"):
        await env.face.extend(replace(job, id=NOBODY), 1000.0)
    with refused("FAILED_PRECONDITION"):
        await env.face.extend(replace(job, attempt=2), 1000.0)


@scenario()
async def the_longest_extend_does_not_overflow(env: Env) -> None:
    queue = env.queue()
    job = await _leased(env, queue)
    longest = {"seconds": 2**63 - 1, "nanos": 999_999_999}
    before = time.time() * 1000
    response = await env.face.call("Extend", _request("Extend", job.id, lease_duration=longest))
    assert before + 299_000 < milliseconds(response.lease_expires_at) < before + 310_000
    assert response.lease_expires_at.nanos % 1_000_000 == 0


@scenario()
async def an_extend_below_one_millisecond_is_one_millisecond(env: Env) -> None:
    queue = env.queue()
    job = await _leased(env, queue)
    await env.face.call("Extend", _request("Extend", job.id, lease_duration={"nanos": 1}))
    assert (await env.reserve_one(queue)).attempt == 2


@scenario()
async def many_leases_that_end_together_all_come_again(env: Env) -> None:
    queue = env.queue()
    ids = await env.enqueue(*[NewJob(queue)] * 200)
    assert len(await env.face.reserve([queue], lease=1.0, max_jobs=200)) == 200
    await env.sleep(1.0 + LATE)
    jobs = await env.face.reserve([queue], max_jobs=256)
    assert sorted(job.id for job in jobs) == sorted(ids)
    assert {job.attempt for job in jobs} == {2}
