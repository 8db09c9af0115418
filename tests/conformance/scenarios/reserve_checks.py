"""Sections 1.3, 4.1, 4.2, 4.7: what a reserve must look like, and what is silently cut."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tests.conformance.configs import LIMITS, RETAINING, STRICT
from tests.conformance.face import NewJob, refused
from tests.conformance.registry import scenario
from tests.conformance.wire import batch, milliseconds, new_job, pb, reserve_request

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.registry import Env

LONGEST = 2**63 - 1


async def _refused(env: Env, request: Any, status: str = "INVALID_ARGUMENT") -> None:
    with refused(status):
        await env.face.call("Reserve", request)


@scenario()
async def a_reserve_needs_queues_and_a_positive_lease(env: Env) -> None:
    q = env.queue()
    await _refused(env, reserve_request())
    await _refused(env, pb.ReserveRequest(queues=[q]))
    for seconds, nanos in ((0, 0), (-1, 0), (0, -1), (1, -1_500_000_000), (-1, 999_999_999)):
        request = reserve_request(q)
        request.lease_duration.seconds = seconds
        request.lease_duration.nanos = nanos
        await _refused(env, request)


@scenario()
async def every_queue_of_a_reserve_must_have_a_good_name(env: Env) -> None:
    q = env.queue()
    for bad in ("", ".", "..", "a/b", "a\nb", "a\x7fb", "a\x85b"):
        await _refused(env, reserve_request(q, bad))


@scenario()
async def a_negative_wait_is_invalid(env: Env) -> None:
    for seconds, nanos in ((-1, 0), (0, -1), (-1, 500_000_000)):
        request = reserve_request(env.queue())
        request.wait_timeout.seconds = seconds
        request.wait_timeout.nanos = nanos
        await _refused(env, request)


@scenario()
async def an_empty_worker_id_and_zero_jobs_are_invalid(env: Env) -> None:
    await _refused(env, reserve_request(env.queue(), worker_id=""))
    await _refused(env, reserve_request(env.queue(), max_jobs=0))


@scenario()
async def durations_out_of_the_usual_form_count_by_their_total(env: Env) -> None:
    q = env.queue()
    await env.enqueue(NewJob(q))
    request = pb.ReserveRequest(queues=[q])
    request.lease_duration.seconds = 9
    request.lease_duration.nanos = 1_000_000_000
    request.wait_timeout.seconds = 1
    request.wait_timeout.nanos = -1_000_000_000
    before = time.time() * 1000
    (job,) = (await env.face.call("Reserve", request)).jobs
    after = time.time() * 1000
    assert before + 9_900 < milliseconds(job.lease_expires_at) < after + 10_100


@scenario()
async def the_checks_of_a_reserve_come_in_their_order(env: Env) -> None:
    # All answers have one code, so the order shows in what the message names.
    request = pb.ReserveRequest(worker_id="", max_jobs=0)
    request.wait_timeout.seconds = -1

    def queues(*names: str) -> None:
        del request.queues[:]
        request.queues.extend(names)

    long = "q" * 513
    steps: list[tuple[str, Callable[[], object]]] = [
        ("queues", lambda: queues("a/b")),
        ("queues item", lambda: queues(*[long] * 33)),
        ("wait_timeout", lambda: request.ClearField("wait_timeout")),
        ("lease_duration", lambda: setattr(request.lease_duration, "seconds", 1)),
        ("worker_id", lambda: request.ClearField("worker_id")),
        ("max_jobs", lambda: request.ClearField("max_jobs")),
        ("max_reserve_queues", lambda: queues(*[long] * 32)),
        ("max_queue_name_bytes", lambda: queues(env.queue())),
    ]
    for named, repair in steps:
        with refused("INVALID_ARGUMENT", saying=named):
            await env.face.call("Reserve", request)
        repair()
    assert not (await env.face.call("Reserve", request)).jobs


@scenario(config=STRICT)
async def strictness_comes_after_the_other_checks_of_a_reserve(env: Env) -> None:
    await _refused(env, reserve_request("undeclared", "q" * 65))
    await _refused(env, reserve_request("undeclared", max_jobs=0))
    await _refused(env, reserve_request("undeclared"), "FAILED_PRECONDITION")


@scenario()
async def thirty_two_queues_are_fine_and_thirty_three_are_not(env: Env) -> None:
    queues = [env.queue() for _ in range(33)]
    await env.enqueue(NewJob(queues[31]))
    (job,) = await env.face.reserve(queues[:32])
    assert job.queue == queues[31]
    with refused("INVALID_ARGUMENT"):
        await env.face.reserve(queues)


@scenario(config=LIMITS)
async def the_configured_number_of_queues_is_the_limit(env: Env) -> None:
    queues = [env.queue() for _ in range(3)]
    assert await env.face.reserve(queues[:2]) == []
    with refused("INVALID_ARGUMENT"):
        await env.face.reserve(queues)


@scenario()
async def a_queue_named_twice_is_fine(env: Env) -> None:
    queue = env.queue()
    await env.enqueue(NewJob(queue))
    assert len(await env.face.reserve([queue, queue], max_jobs=5)) == 1


@scenario()
async def a_queue_name_of_the_limit_can_be_reserved_and_a_longer_one_is_invalid(env: Env) -> None:
    name = env.queue()
    name += "x" * (512 - len(name))
    assert await env.face.reserve([name]) == []
    with refused("INVALID_ARGUMENT"):
        await env.face.reserve([name + "x"])


@scenario()
async def one_job_comes_unless_more_are_asked_for(env: Env) -> None:
    queue = env.queue()
    await env.enqueue(*[NewJob(queue)] * 6)
    assert len(await env.face.reserve([queue])) == 1
    assert len(await env.face.reserve([queue], max_jobs=2)) == 2
    assert len(await env.face.reserve([queue], max_jobs=100)) == 3


@scenario(config=LIMITS)
async def more_jobs_than_the_batch_limit_are_cut_to_it(env: Env) -> None:
    queue = env.queue()
    await env.enqueue(*[NewJob(queue)] * 5)
    assert len(await env.face.reserve([queue], max_jobs=2**32 - 1)) == 3


@scenario()
async def the_default_reserve_batch_is_256(env: Env) -> None:
    queue = env.queue()
    for _ in range(2):
        await env.enqueue(*[NewJob(queue)] * 150)
    assert len(await env.face.reserve([queue], max_jobs=300)) == 256
    assert len(await env.face.reserve([queue], max_jobs=300)) == 44


@scenario(config=LIMITS)
async def a_lease_is_cut_to_the_shortest_maximum_of_all_listed_queues(env: Env) -> None:
    plain, roomy, patient = env.queue(), env.declared("roomy"), env.declared("patient")
    cases = [
        ([plain], plain, 20.0),
        ([patient], patient, 40.0),
        ([patient, roomy], patient, 5.0),  # also when the job comes from the longer one
        ([patient, plain], patient, 20.0),
    ]
    for queues, queue, seconds in cases:
        await env.enqueue(NewJob(queue))
        await _lease_is(env, queues, 1000.0, seconds)


@scenario()
async def the_default_longest_lease_is_300_seconds(env: Env) -> None:
    queue = env.queue()
    await env.enqueue(NewJob(queue))
    await _lease_is(env, [queue], 100_000.0, 300.0)


@scenario()
async def a_lease_below_the_maximum_is_as_asked(env: Env) -> None:
    queue = env.queue()
    await env.enqueue(NewJob(queue))
    await _lease_is(env, [queue], 12.345, 12.345)


async def _lease_is(env: Env, queues: list[str], asked: float, seconds: float) -> None:
    before = time.time() * 1000
    (job,) = await env.face.reserve(queues, lease=asked)
    after = time.time() * 1000
    assert before + seconds * 1000 - 50 < job.lease_expires_ms < after + seconds * 1000 + 50
    await env.face.ack(job)


@scenario()
async def the_longest_durations_do_not_overflow(env: Env) -> None:
    queue = env.queue()
    await env.enqueue(NewJob(queue))
    request = pb.ReserveRequest(queues=[queue])
    for duration in (request.lease_duration, request.wait_timeout):
        duration.seconds = LONGEST
        duration.nanos = 999_999_999
    before = time.time() * 1000
    (job,) = (await env.face.call("Reserve", request)).jobs
    assert before + 299_000 < milliseconds(job.lease_expires_at) < before + 310_000


@scenario(config=RETAINING)
async def a_lease_below_one_millisecond_is_one_millisecond(env: Env) -> None:
    queue = env.queue()
    await env.face.call("EnqueueBatch", batch(new_job(queue, max_attempts=1)))
    request = pb.ReserveRequest(queues=[queue])
    request.lease_duration.nanos = 1
    (job,) = (await env.face.call("Reserve", request)).jobs
    deadline = env.loop.now() + 15
    while not (dead := await env.face.drain(queue)):
        assert env.loop.now() < deadline
        await env.sleep(0.05)
    assert (dead[0].id, dead[0].cause) == (job.id, "lease_expired")


@scenario()
async def a_wait_below_one_millisecond_is_none(env: Env) -> None:
    request = reserve_request(env.queue())
    request.wait_timeout.nanos = 999_999
    started = env.loop.now()
    assert not (await env.face.call("Reserve", request)).jobs
    assert env.loop.now() - started < 3.0


@scenario()
async def a_big_answer_comes_whole(env: Env) -> None:
    queue = env.queue()
    payload = (bytes(range(256)) * 4096, "raw")  # 1 MiB
    await env.enqueue(*[NewJob(queue, payload=payload)] * 10)
    jobs = await env.face.reserve([queue], max_jobs=20)
    assert [job.payload == payload for job in jobs] == [True] * 10
