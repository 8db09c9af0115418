"""The 19 integration scenarios of the official Python client (official-clients.md 4.7)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.conformance.face import Ack, Fail, NewJob
from tests.conformance.registry import scenario
from tests.conformance.wire import TRACEPARENT

if TYPE_CHECKING:
    from tests.conformance.face import Handled
    from tests.conformance.registry import Env


@scenario()
async def connect_and_get_server_info(env: Env) -> None:
    info = await env.face.info()
    assert info["server_version"]
    assert info["supported_protocol_versions"] == ["v1"]
    assert int(str(info["max_enqueue_batch"])) > 0
    assert int(str(info["max_reserve_batch"])) > 0


@scenario()
async def enqueue_single(env: Env) -> None:
    ack = await env.face.enqueue(NewJob(env.queue()))
    assert isinstance(ack, Ack)
    assert ack.job_id
    assert not ack.deduplicated


@scenario()
async def enqueue_single_with_payload(env: Env) -> None:
    job = NewJob(env.queue(), payload=(b'{"a": 1}', "application/json"))
    ack = await env.face.enqueue(job)
    assert isinstance(ack, Ack)
    assert ack.job_id


@scenario()
async def enqueue_batch(env: Env) -> None:
    assert len(set(await env.enqueue(*[NewJob(env.queue())] * 3))) == 3


@scenario()
async def enqueue_atomic(env: Env) -> None:
    first, second = await env.face.enqueue_atomic([NewJob(env.queue())] * 2)
    assert first.job_id != second.job_id


@scenario()
async def idempotency_same_key_returns_same_id(env: Env) -> None:
    job = NewJob(env.queue(), key="same")
    (job_id,) = await env.enqueue(job)
    assert await env.face.enqueue(job) == Ack(job_id, True)


@scenario()
async def reserve_of_an_empty_queue_returns_nothing(env: Env) -> None:
    assert await env.face.reserve([env.queue()], wait=0.1) == []


@scenario()
async def enqueue_reserve_ack(env: Env) -> None:
    queue = env.queue()
    await env.enqueue(NewJob(queue, "greet", (b"hello", "text/plain")))
    job = await env.reserve_one(queue)
    assert (job.job_type, job.attempt, job.payload) == ("greet", 1, (b"hello", "text/plain"))
    await env.face.ack(job)


@scenario()
async def nack_retry_then_ack(env: Env) -> None:
    queue = env.queue()
    await env.enqueue(NewJob(queue))
    job = await env.reserve_one(queue)
    assert not await env.face.nack(job, "default", "again")
    again = await env.reserve_one(queue)
    assert (again.id, again.attempt) == (job.id, 2)
    await env.face.ack(again)


@scenario()
async def nack_dead_letter(env: Env) -> None:
    queue = env.queue()
    await env.enqueue(NewJob(queue))
    assert await env.face.nack(await env.reserve_one(queue), "dead_letter", "poison")
    assert await env.face.reserve([queue], wait=0.3) == []


@scenario()
async def extend_lease(env: Env) -> None:
    queue = env.queue()
    await env.enqueue(NewJob(queue))
    job = await env.reserve_one(queue, lease=5.0)
    assert await env.face.extend(job, 30.0) > time.time() * 1000 + 25_000


@scenario()
async def trace_context_roundtrip(env: Env) -> None:
    queue = env.queue()
    await env.enqueue(NewJob(queue, trace=(TRACEPARENT, None)))
    trace = (await env.reserve_one(queue)).trace
    assert trace is not None
    assert trace[0] == TRACEPARENT


@scenario()
async def worker_processes_and_acks(env: Env) -> None:
    queue = env.queue()
    seen: list[bytes] = []

    async def handler(job: Handled) -> None:
        assert job.payload is not None
        seen.append(job.payload[0])

    async with env.face.worker([queue], {"task": handler}) as worker:
        await env.enqueue(*[NewJob(queue, payload=(data, "raw")) for data in (b"1", b"2")])
        await env.eventually(lambda: len(seen) == 2)
        worker.shutdown()
        await worker.finished()
    assert sorted(seen) == [b"1", b"2"]
    assert await env.is_empty(queue)


async def _redelivered(env: Env, error: Exception) -> None:
    queue = env.queue()
    attempts: list[int] = []

    async def handler(job: Handled) -> None:
        attempts.append(job.attempt)
        if job.attempt == 1:
            raise error

    async with env.face.worker([queue], {"task": handler}):
        await env.enqueue(NewJob(queue))
        await env.eventually(lambda: 2 in attempts)
    assert attempts == [1, 2]
    assert await env.is_empty(queue)


@scenario()
async def worker_handler_error_nacks(env: Env) -> None:
    await _redelivered(env, Fail("retry", "not now"))


@scenario()
async def worker_exception_nacks(env: Env) -> None:
    await _redelivered(env, RuntimeError("boom"))


@scenario()
async def worker_catch_all(env: Env) -> None:
    queue = env.queue()
    seen: list[str] = []

    async def catch_all(job: Handled) -> None:
        seen.append(job.job_type)

    async with env.face.worker([queue], {}, catch_all=catch_all):
        await env.enqueue(NewJob(queue, "whatever"))
        await env.eventually(lambda: seen == ["whatever"])


@scenario()
async def worker_auto_extend(env: Env) -> None:
    queue = env.queue()
    attempts: list[int] = []
    completed: list[int] = []

    async def handler(job: Handled) -> None:
        attempts.append(job.attempt)
        await env.sleep(9.0)
        completed.append(job.attempt)

    # The official suite holds a 0.5 s lease for 0.6 s; this is the same with room for a busy
    # machine: several leases long, or it would prove nothing.
    async with env.face.worker([queue], {"task": handler}, lease=4.0, auto_extend=True):
        await env.enqueue(NewJob(queue))
        await env.eventually(lambda: bool(completed), 20.0)
    assert (attempts, completed) == ([1], [1])
    assert await env.is_empty(queue)


@scenario()
async def worker_duplicate_handler_raises(env: Env) -> None:
    assert env.face.duplicate_handler_is_refused(env.queue())


@scenario()
async def worker_parallel_jobs(env: Env) -> None:
    queue = env.queue()
    running = most = done = 0

    async def handler(job: Handled) -> None:
        nonlocal running, most, done
        running += 1
        most = max(most, running)
        await env.eventually(lambda: most > 1)
        await env.sleep(0.15)
        running -= 1
        done += 1

    async with env.face.worker([queue], {"task": handler}, max_in_flight=3):
        await env.enqueue(*[NewJob(queue)] * 5)
        await env.eventually(lambda: done == 5)
    assert 1 < most <= 3
    assert await env.is_empty(queue)
