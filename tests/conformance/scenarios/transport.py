"""Sections 2.1, 2.2, 14: what a gRPC client can see of the transport."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.conformance.configs import KEYS, SMALL_MESSAGES, STRICT
from tests.conformance.face import NewJob, refused
from tests.conformance.registry import scenario
from tests.conformance.wire import batch, new_job, pb, reserve_request, route

if TYPE_CHECKING:
    from tests.conformance.registry import Env

LIMIT = 16_777_216


def _batch_of(size: int, queue: str) -> bytes:
    """An EnqueueBatchRequest of exactly `size` bytes whose one job is fit to be stored.

    The bulk stands in a field that no version of the contract has; those are ignored.
    """
    body: bytes = batch(new_job(queue)).SerializeToString()
    # Field 1000, length-delimited: the tag takes two bytes, this length at most four.
    rest = size - len(body) - 2
    for length_bytes in range(1, 5):
        length = rest - length_bytes
        if length < 1 << (7 * length_bytes):
            filler = b"\xc2\x3e" + _varint(length, length_bytes) + bytes(length)
            assert len(body) + len(filler) == size
            return body + filler
    raise ValueError(size)


def _varint(value: int, width: int) -> bytes:
    out = bytearray()
    for n in range(width):
        out.append((value & 0x7F) | (0x80 if n < width - 1 else 0))
        value >>= 7
    return bytes(out)


@scenario(limit=100.0)
async def a_message_of_sixteen_mebibytes_passes_and_one_byte_more_is_out_of_range(env: Env) -> None:
    queue = env.queue()
    path = route("EnqueueBatch")
    answer = await env.face.call_bytes(path, _batch_of(LIMIT, queue), timeout=40.0)
    assert len(pb.EnqueueBatchResponse.FromString(answer).results) == 1
    with refused("OUT_OF_RANGE"):
        await env.face.call_bytes(path, _batch_of(LIMIT + 1, queue), timeout=40.0)
    # The connection stays usable.
    await env.face.ack(await env.reserve_one(queue))
    assert await env.is_empty(queue)


@scenario(config=SMALL_MESSAGES)
async def the_configured_message_limit_holds_to_the_byte(env: Env) -> None:
    queue = env.queue()
    path = route("EnqueueBatch")
    await env.face.call_bytes(path, _batch_of(4096, queue))
    for size in (4097, 5000, 100_000, 3_000_000):
        with refused("OUT_OF_RANGE"):
            await env.face.call_bytes(path, _batch_of(size, queue))
    assert len(await env.face.reserve([queue], max_jobs=9)) == 1


@scenario()
async def undecodable_messages_are_internal_errors(env: Env) -> None:
    bad = [
        b"\xff",
        b"\x0a",
        b"\x0a\x05abc",
        b"\x0a\x02\xff\xfe",  # a string that is no UTF-8
        b"\x0b",  # a group that never ends
        b"\x0d\x00",  # a cut-off fixed32
        b"\x08" + b"\xff" * 11,  # a varint of more than ten bytes
    ]
    for body in bad:
        with refused("INTERNAL"):
            await env.face.call_bytes(route("Ack"), body)


@scenario()
async def a_string_that_is_no_utf8_in_a_job_fails_the_whole_batch(env: Env) -> None:
    queue = env.queue()
    good = new_job(queue).SerializeToString()
    bad = b"\x0a\x02\xff\xfe" + new_job(queue).SerializeToString()
    body = b"".join(b"\x0a" + bytes([len(job)]) + job for job in (good, bad))
    with refused("INTERNAL"):
        await env.face.call_bytes(route("EnqueueBatch"), body)
    assert await env.is_empty(queue)


@scenario()
async def unknown_fields_are_ignored(env: Env) -> None:
    queue = env.queue()
    body = batch(new_job(queue)).SerializeToString()
    unknown = b"\xf8\x3e\x01" + b"\xfa\x3e\x03abc" + b"\xfd\x3e1234" + b"\xf9\x3e12345678"
    await env.face.call_bytes(route("EnqueueBatch"), body + unknown)
    await env.face.ack(await env.reserve_one(queue))


@scenario()
async def the_last_of_a_repeated_single_field_wins(env: Env) -> None:
    first, second = env.queue("a"), env.queue("b")
    job = new_job(first).SerializeToString() + pb.EnqueueRequest(queue=second).SerializeToString()
    body = b"\x0a" + bytes([len(job)]) + job
    await env.face.call_bytes(route("EnqueueBatch"), body)
    assert await env.is_empty(first)
    await env.reserve_one(second)


@scenario()
async def unknown_methods_and_services_are_unimplemented(env: Env) -> None:
    for path in ("/sepp.v1.QueueService/Peek", "/sepp.v2.QueueService/Ack", "/x/y", "/x"):
        with refused("UNIMPLEMENTED"):
            await env.face.call_bytes(path, b"")
    await env.face.info()


@scenario()
async def a_call_that_runs_into_its_deadline_ends_then(env: Env) -> None:
    started = time.monotonic()
    # The server says CANCELLED; the client's own timer may be a hair faster.
    with refused("CANCELLED", "DEADLINE_EXCEEDED"):
        await env.face.call("Reserve", reserve_request(env.queue(), wait=10.0), timeout=0.6)
    assert 0.5 < time.monotonic() - started < 5.0
    await env.face.info()


@scenario()
async def a_reserve_that_is_answered_before_its_deadline_is_not_hurt_by_it(env: Env) -> None:
    request = reserve_request(env.queue(), wait=0.3)
    assert not (await env.face.call("Reserve", request, timeout=5.0)).jobs


@scenario()
async def many_calls_at_once_on_one_connection_all_come_back(env: Env) -> None:
    queue = env.queue()
    tasks = [env.start(env.face.enqueue_batch, [NewJob(queue, f"{n}")]) for n in range(300)]
    ids = set()
    for task in tasks:
        (result,) = await task.result()
        ids.add(result.job_id)  # type: ignore[union-attr]
    assert len(ids) == 300
    got = await env.face.reserve([queue], max_jobs=256)
    got += await env.face.reserve([queue], max_jobs=256)
    assert {job.id for job in got} == ids
    for acking in [env.start(env.face.ack, job) for job in got]:
        await acking.result()
    assert await env.is_empty(queue)


@scenario()
async def a_waiting_reserve_holds_up_no_other_call(env: Env) -> None:
    waiting = [env.start(_wait, env, env.queue()) for _ in range(10)]
    await env.sleep(0.2)
    for _ in range(20):
        await env.face.info()
    assert not any(task.done for task in waiting)


async def _wait(env: Env, queue: str) -> None:
    await env.face.reserve([queue], wait=10.0)


@scenario(config=STRICT)
async def non_ascii_messages_survive_the_status_line(env: Env) -> None:
    # The message must list the undeclared names; the wire percent-encodes them.
    names = ["undeclared ä☃%`'", "undeclared 100% \U0001f600"]
    for name in names:
        with refused("FAILED_PRECONDITION", saying=name):
            await env.face.call("Reserve", reserve_request(env.declared("known"), *names))


@scenario()
async def reflection_is_not_served(env: Env) -> None:
    for version in ("v1", "v1alpha"):
        with refused("UNIMPLEMENTED"):
            await env.face.call_bytes(
                f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo", b""
            )


@scenario(config=KEYS)
async def health_is_serving_and_needs_no_key(env: Env) -> None:
    face = await env.connect()
    check = "/grpc.health.v1.Health/Check"
    for service in ("", "sepp.v1.QueueService"):
        assert await face.call_bytes(check, _health_request(service)) == b"\x08\x01"  # SERVING
    for service in ("grpc.health.v1.Health", "nobody"):
        with refused("NOT_FOUND"):
            await face.call_bytes(check, _health_request(service))


def _health_request(service: str) -> bytes:
    # HealthCheckRequest: field 1, the service's name.
    return b"\x0a" + bytes([len(service)]) + service.encode() if service else b""
