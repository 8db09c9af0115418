"""Sections 5.3, 5.4: nacks, their delays and the retry policy."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tests.conformance.configs import RETAINING, RETRIES
from tests.conformance.face import NewJob
from tests.conformance.registry import scenario
from tests.conformance.wire import pb

if TYPE_CHECKING:
    from tests.conformance.face import Delivery
    from tests.conformance.registry import Env

SLACK = 5.0  # on the late side; a job never comes early


async def _comes_again(
    env: Env, job: Delivery, least: float, most: float, retry: str | float = "default"
) -> Delivery:
    """Nack `job`; it comes again after `least` to `most` seconds."""
    nacked = time.time()
    assert not await env.face.nack(job, retry)
    again = await env.reserve_one(job.queue, wait=10.0)
    took = time.time() - nacked
    assert least - 0.005 <= took < most + SLACK, (least, took, most)
    assert (again.id, again.attempt) == (job.id, job.attempt + 1)
    return again


async def _leased(env: Env, queue: str, **fields: Any) -> Delivery:
    await env.enqueue(NewJob(queue, **fields))
    return await env.reserve_one(queue)


@scenario()
async def without_a_policy_a_nack_is_retried_at_once(env: Env) -> None:
    job = await _leased(env, env.queue())
    await _comes_again(env, job, 0.0, 0.0)


@scenario()
async def an_absent_retry_is_the_policy(env: Env) -> None:
    job = await _leased(env, env.queue())
    response = await env.face.call("Nack", pb.NackRequest(job_id=job.id, attempt=1))
    assert not response.dead_lettered
    assert (await env.reserve_one(job.queue, wait=0.0)).attempt == 2


@scenario()
async def an_explicit_delay_is_kept_exactly(env: Env) -> None:
    job = await _leased(env, env.queue())
    for delay in (0.3, 1.1):
        job = await _comes_again(env, job, delay, delay, delay)


@scenario()
async def a_delayed_job_is_invisible_until_then(env: Env) -> None:
    job = await _leased(env, env.queue())
    await env.face.nack(job, 5.0)
    assert await env.is_empty(job.queue)
    await env.sleep(0.5)
    assert await env.is_empty(job.queue)
    assert (await env.reserve_one(job.queue, wait=10.0)).attempt == 2


@scenario()
async def a_delay_below_one_millisecond_is_none(env: Env) -> None:
    job = await _leased(env, env.queue())
    retry = {"delay": {"nanos": 999_999}}
    await env.face.call("Nack", pb.NackRequest(job_id=job.id, attempt=1, retry=retry))
    assert (await env.reserve_one(job.queue, wait=0.0)).attempt == 2


@scenario()
async def the_longest_delay_does_not_overflow(env: Env) -> None:
    job = await _leased(env, env.queue())
    retry = {"delay": {"seconds": 2**63 - 1, "nanos": 999_999_999}}
    response = await env.face.call("Nack", pb.NackRequest(job_id=job.id, attempt=1, retry=retry))
    assert not response.dead_lettered
    assert await env.is_empty(job.queue)


@scenario(config=RETRIES)
async def a_fixed_policy_delays_by_three_quarters_to_all_of_its_base(env: Env) -> None:
    job = await _leased(env, env.declared("steady"), max_attempts=9)
    for _ in range(3):
        job = await _comes_again(env, job, 0.6, 0.8)


@scenario(config=RETRIES)
async def an_exponential_policy_doubles_up_to_its_maximum(env: Env) -> None:
    job = await _leased(env, env.declared("growing"))
    for capped in (0.4, 0.8, 1.0, 1.0):
        job = await _comes_again(env, job, capped * 0.75, capped)


@scenario(config=RETRIES)
async def a_base_of_zero_is_no_delay_even_when_exponential(env: Env) -> None:
    job = await _leased(env, env.declared("eager"))
    await _comes_again(env, job, 0.0, 0.0)


@scenario(config=RETRIES)
async def the_horizon_bounds_the_policy_and_an_explicit_delay(env: Env) -> None:
    job = await _leased(env, env.declared("near"), max_attempts=9)
    job = await _comes_again(env, job, 0.6, 0.8)
    job = await _comes_again(env, job, 0.8, 0.8, 3600.0)
    await _comes_again(env, job, 0.3, 0.3, 0.3)


@scenario(config=RETRIES)
async def a_lapsed_lease_is_retried_at_once_whatever_the_policy(env: Env) -> None:
    queue = env.declared("slowest")
    await env.enqueue(NewJob(queue))
    job = await env.reserve_one(queue, lease=1.0)
    again = await env.reserve_one(queue, wait=10.0)
    assert (again.id, again.attempt) == (job.id, 2)


@scenario(config=RETRIES)
async def an_explicit_zero_bypasses_the_policy(env: Env) -> None:
    job = await _leased(env, env.declared("slow"))
    await _comes_again(env, job, 0.0, 0.0, 0.0)


@scenario()
async def the_last_attempt_is_final_whatever_the_strategy(env: Env) -> None:
    for retry in ("default", 0.0, 5.0):
        queue = env.queue()
        job = await _leased(env, queue, max_attempts=1)
        assert await env.face.nack(job, retry)
        await env.sleep(0.05)
        assert await env.is_empty(queue)


@scenario(config=RETAINING)
async def an_exhausted_job_is_a_dead_letter_with_the_last_reason(env: Env) -> None:
    queue = env.queue()
    job = await _leased(env, queue, max_attempts=2)
    assert not await env.face.nack(job, 0.0, "first")
    job = await env.reserve_one(queue)
    assert await env.face.nack(job, 5.0, "second")
    (dead,) = await env.face.drain(queue)
    assert (dead.cause, dead.final_attempt, dead.last_reason) == (
        "attempts_exhausted",
        2,
        "second",
    )


@scenario(config=RETAINING)
async def a_dead_letter_nack_is_rejected_even_on_the_last_attempt(env: Env) -> None:
    for max_attempts in (1, 5):
        queue = env.queue()
        job = await _leased(env, queue, max_attempts=max_attempts)
        assert await env.face.nack(job, "dead_letter", "why")
        (dead,) = await env.face.drain(queue)
        assert (dead.cause, dead.final_attempt, dead.last_reason) == ("rejected", 1, "why")


@scenario(config=RETAINING)
async def the_reason_is_of_the_final_nack_only_and_absent_if_not_sent(env: Env) -> None:
    queue = env.queue()
    job = await _leased(env, queue, max_attempts=2)
    await env.face.nack(job, 0.0, "kept nowhere")
    job = await env.reserve_one(queue)
    await env.face.nack(job)
    (dead,) = await env.face.drain(queue)
    assert dead.last_reason is None


@scenario(config=RETAINING)
async def a_reason_may_be_empty_or_long(env: Env) -> None:
    for reason in ("", "ä" * 300_000):
        queue = env.queue()
        job = await _leased(env, queue)
        request = pb.NackRequest(job_id=job.id, attempt=1, reason=reason)
        request.retry.dead_letter.SetInParent()
        assert (await env.face.call("Nack", request)).dead_lettered
        response = await env.face.call("DrainDeadLetters", pb.DrainDeadLettersRequest(queue=queue))
        assert response.records[0].HasField("last_reason")
        assert response.records[0].last_reason == reason


@scenario()
async def without_retention_a_final_nack_still_says_dead_lettered(env: Env) -> None:
    queue = env.queue()
    job = await _leased(env, queue)
    assert await env.face.nack(job, "dead_letter", "gone")
    assert await env.is_empty(queue)
    assert await env.face.drain(queue) == []
