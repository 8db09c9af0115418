"""Sections 1.2, 3.1, 3.2 (1): what an enqueue must look like."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from tests.conformance.configs import LIMITS
from tests.conformance.face import NewJob, refused
from tests.conformance.registry import scenario
from tests.conformance.wire import batch, new_job, pb, reserve_request

if TYPE_CHECKING:
    from tests.conformance.face import Primitive
    from tests.conformance.registry import Env

CONTROLS = [chr(c) for c in (0x00, 0x01, 0x09, 0x0A, 0x1F, 0x7F, 0x80, 0x85, 0x9F)]
BOTH = ("EnqueueBatch", "EnqueueAtomic")


async def _rejections(env: Env, *jobs: Any) -> list[str]:
    """The rejection reason of each job of a batch, or "" where it was taken."""
    response = await env.face.call("EnqueueBatch", batch(*jobs))
    assert len(response.results) == len(jobs)
    return [r.rejection.WhichOneof("reason") or "" for r in response.results]


async def _invalid_message(env: Env, job: Any) -> str:
    response = await env.face.call("EnqueueBatch", batch(job))
    rejection = response.results[0].rejection
    assert rejection.WhichOneof("reason") == "invalid_request", response
    assert rejection.invalid_request.message
    return str(rejection.invalid_request.message)


@scenario()
async def an_empty_batch_is_invalid(env: Env) -> None:
    for rpc in BOTH:
        with refused("INVALID_ARGUMENT"):
            await env.face.call(rpc, batch())


@scenario(config=LIMITS)
async def a_batch_of_exactly_the_limit_is_taken(env: Env) -> None:
    for rpc in BOTH:
        queue = env.queue()
        await env.face.call(rpc, batch(*[new_job(queue)] * 20))
        assert len(await env.face.reserve([queue], max_jobs=3)) == 3


@scenario(config=LIMITS)
async def a_batch_of_one_over_the_limit_is_invalid_and_nothing_is_stored(env: Env) -> None:
    for rpc in BOTH:
        queue = env.queue()
        with refused("INVALID_ARGUMENT"):
            await env.face.call(rpc, batch(*[new_job(queue)] * 21))
        assert await env.is_empty(queue)


@scenario()
async def the_default_batch_limit_is_256(env: Env) -> None:
    queue = env.queue()
    assert len(await env.enqueue(*[NewJob(queue)] * 256)) == 256
    with refused("INVALID_ARGUMENT"):
        await env.face.enqueue_batch([NewJob(queue)] * 257)


@scenario()
async def a_bad_queue_name_rejects_only_its_job(env: Env) -> None:
    queue = env.queue()
    bad = ["", ".", "..", "a/b", "/", *(f"a{c}b" for c in CONTROLS)]
    reasons = await _rejections(env, new_job(queue), *map(new_job, bad), new_job(queue))
    assert reasons == ["", *["invalid_request"] * len(bad), ""]
    assert len(await env.face.reserve([queue], max_jobs=9)) == 2


@scenario()
async def an_atomic_batch_lists_its_invalid_jobs(env: Env) -> None:
    queue = env.queue()
    jobs = [new_job(queue), new_job("a/b"), new_job(queue), new_job(queue, priority=10)]
    response = await env.face.call("EnqueueAtomic", batch(*jobs))
    errors = response.rejection.errors
    assert [error.index for error in errors] == [1, 3]
    assert {error.rejection.WhichOneof("reason") for error in errors} == {"invalid_request"}
    assert await env.is_empty(queue)


@scenario()
async def unusual_queue_names_are_fine(env: Env) -> None:
    base = env.queue()
    names = [
        base + suffix for suffix in (" with spaces ", "...", "\u200b", "ä☃😀", "\u00a0", "-%2F")
    ]
    names.append(f"... {base}")
    assert await _rejections(env, *map(new_job, names)) == [""] * len(names)
    for name in names:
        assert (await env.reserve_one(name)).queue == name


@scenario()
async def every_structural_fault_rejects_the_job_as_invalid(env: Env) -> None:
    q = env.queue()
    empty_value = pb.EnqueueRequest(queue=q, job_type="t")
    empty_value.custom["k"].SetInParent()
    empty_key = pb.EnqueueRequest(queue=q, job_type="t")
    empty_key.custom[""].int_value = 1
    bad = [
        new_job(q, ""),
        new_job(q, payload=pb.Payload(encoding="json")),
        new_job(q, payload=pb.Payload(data=b"x")),
        new_job(q, payload=pb.Payload()),
        new_job(q, idempotency_key=""),
        new_job(q, priority=10),
        new_job(q, priority=2**32 - 1),
        new_job(q, max_attempts=0),
        new_job(q, trace_context=pb.TraceContext()),
        new_job(q, trace_context=pb.TraceContext(tracestate="a=b")),
        empty_key,
        empty_value,
    ]
    assert await _rejections(env, *bad) == ["invalid_request"] * len(bad)
    assert await env.is_empty(q)


@scenario()
async def a_job_on_the_edge_of_every_structural_check_is_taken(env: Env) -> None:
    q = env.queue()
    good = [
        new_job(q, priority=0),
        new_job(q, priority=9),
        new_job(q, max_attempts=1),
        new_job(q, max_attempts=2**32 - 1),
        new_job(q, payload=pb.Payload(data=b"\0", encoding="?")),
        new_job(q, idempotency_key=" "),
        new_job(q, trace_context=pb.TraceContext(traceparent="anything goes")),
    ]
    assert await _rejections(env, *good) == [""] * len(good)


@scenario()
async def structural_checks_come_in_the_order_of_the_fields(env: Env) -> None:
    # Everything is wrong at once; repaired one after the other, each message names the next.
    job = pb.EnqueueRequest(
        queue="a/b",
        payload=pb.Payload(),
        idempotency_key="",
        priority=10,
        max_attempts=0,
        trace_context=pb.TraceContext(),
    )
    job.custom[""].SetInParent()
    job.custom["b"].SetInParent()
    job.custom["a"].SetInParent()
    q = env.queue()

    def repair_empty_key() -> None:
        del job.custom[""]

    def repair_a() -> None:
        job.custom["a"].int_value = 1

    def repair_b() -> None:
        job.custom["b"].int_value = 1

    steps: list[tuple[str, Any]] = [
        ("queue", lambda: setattr(job, "queue", q)),
        ("job_type", lambda: setattr(job, "job_type", "t")),
        ("data", lambda: setattr(job.payload, "data", b"x")),
        ("encoding", lambda: setattr(job.payload, "encoding", "e")),
        ("idempotency_key", lambda: setattr(job, "idempotency_key", "k")),
        ("priority", lambda: setattr(job, "priority", 9)),
        ("max_attempts", lambda: setattr(job, "max_attempts", 1)),
        ("traceparent", lambda: setattr(job.trace_context, "traceparent", "t")),
        ("custom", repair_empty_key),
        ("custom[a]", repair_a),
        ("custom[b]", repair_b),
    ]
    for field, repair in steps:
        message = await _invalid_message(env, job)
        assert field in message, (field, message)
        repair()
    assert await _rejections(env, job) == [""]


@scenario()
async def every_kind_of_custom_value_comes_back_as_sent(env: Env) -> None:
    custom: dict[str, Primitive] = {
        "s": "ä☃",
        "empty": "",
        "i": -(2**63),
        "j": 2**63 - 1,
        "b": True,
        "c": False,
    }
    custom |= {"d": 1.5, "e": -0.0, "f": 1e308}
    queue = env.queue()
    await env.enqueue(NewJob(queue, custom=custom))
    got = (await env.reserve_one(queue)).custom
    assert dict(got) == custom
    assert {k: type(v) for k, v in got.items()} == {k: type(v) for k, v in custom.items()}


@scenario()
async def a_job_comes_back_as_enqueued(env: Env) -> None:
    queue = env.queue()
    trace = ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=1")
    (job_id,) = await env.enqueue(
        NewJob(queue, "kind", (b"\0\xff", "raw"), "key", 3, 7, {"k": 1}, trace)
    )
    job = await env.reserve_one(queue)
    assert (job.id, job.queue, job.job_type, job.payload) == (
        job_id,
        queue,
        "kind",
        (b"\0\xff", "raw"),
    )
    assert (job.priority, job.attempt, job.max_attempts) == (3, 1, 7)
    assert (job.custom, job.trace, job.scheduled_ms) == ({"k": 1}, trace, None)


@scenario()
async def absent_fields_stay_absent(env: Env) -> None:
    queue = env.queue()
    await env.face.call("EnqueueBatch", batch(new_job(queue)))
    (job,) = (await env.face.call("Reserve", reserve_request(queue))).jobs
    assert not any(job.HasField(f) for f in ("payload", "trace_context", "scheduled_at"))
    assert job.HasField("enqueued_at")
    assert job.HasField("lease_expires_at")
    assert not job.custom
    assert job.enqueued_at.nanos % 1_000_000 == 0
    assert job.lease_expires_at.nanos % 1_000_000 == 0


@scenario()
async def trace_contexts_are_kept_untouched(env: Env) -> None:
    queue = env.queue()
    contexts = [
        pb.TraceContext(traceparent="not a traceparent"),
        pb.TraceContext(traceparent="x", tracestate=""),
        pb.TraceContext(traceparent="y", tracestate="a=b"),
    ]
    for context in contexts:
        await env.face.call("EnqueueBatch", batch(new_job(queue, trace_context=context)))
        (job,) = (await env.face.call("Reserve", reserve_request(queue))).jobs
        assert job.trace_context == context
        assert job.trace_context.HasField("tracestate") == context.HasField("tracestate")


@scenario()
async def job_ids_are_lower_case_uuids_of_version_four(env: Env) -> None:
    for job_id in await env.enqueue(*[NewJob(env.queue())] * 20):
        assert str(uuid.UUID(job_id)) == job_id
        assert uuid.UUID(job_id).version == 4


@scenario()
async def results_come_in_the_order_of_the_jobs(env: Env) -> None:
    queue = env.queue()
    jobs = [NewJob(queue, f"type-{n}") if n % 3 else NewJob("q" * 513) for n in range(12)]
    results = await env.face.enqueue_batch(jobs)
    types = {job.id: job.job_type for job in await env.face.reserve([queue], max_jobs=20)}
    for n, result in enumerate(results):
        if n % 3:
            assert types[result.job_id] == f"type-{n}"  # type: ignore[union-attr]
        else:
            assert result.reason == "queue_name_too_long"  # type: ignore[union-attr]


@scenario()
async def jobs_of_one_request_share_their_enqueued_at(env: Env) -> None:
    queue = env.queue()
    await env.enqueue(*[NewJob(queue)] * 50)
    jobs = await env.face.reserve([queue], max_jobs=50)
    assert len({job.enqueued_ms for job in jobs}) == 1
