"""Section 3.2 (2-12), 3.5, 7, 8.1: each limit lets its own value pass and refuses one more."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from tests.conformance.configs import LIMITS, STRICT
from tests.conformance.face import Ack, NewJob, Rejection, refused
from tests.conformance.registry import scenario
from tests.conformance.wire import batch, new_job, pb

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.face import Delivery, Primitive
    from tests.conformance.registry import Env

DAY = 86_400.0


def _in(seconds: float) -> datetime:
    # Whole milliseconds: the server cuts the rest off.
    return datetime.fromtimestamp(round(time.time() + seconds, 3), tz=UTC)


async def _edge(env: Env, fits: NewJob, over: NewJob, expected: Rejection) -> None:
    """`fits` is taken, `over` is refused as expected."""
    assert isinstance(await env.face.enqueue(fits), Ack)
    assert await env.face.enqueue(over) == expected


@scenario()
async def the_queue_name_limit_counts_utf8_bytes(env: Env) -> None:
    name = env.queue()
    name += "ä" * ((512 - len(name)) // 2)
    name += "x" * (512 - len(name.encode()))
    over = name + "x"
    refusal = Rejection("queue_name_too_long", {"limit": 512, "actual": 513})
    await _edge(env, NewJob(name), NewJob(over), refusal)
    assert (await env.reserve_one(name)).queue == name


@scenario()
async def the_job_type_limit_counts_utf8_bytes(env: Env) -> None:
    queue = env.queue()
    refusal = Rejection("job_type_name_too_long", {"limit": 256, "actual": 257})
    await _edge(env, NewJob(queue, "ä" * 128), NewJob(queue, "ä" * 128 + "x"), refusal)


@scenario()
async def the_idempotency_key_limit_counts_utf8_bytes(env: Env) -> None:
    queue = env.queue()
    refusal = Rejection("idempotency_key_too_long", {"limit": 256, "actual": 257})
    await _edge(env, NewJob(queue, key="ä" * 128), NewJob(queue, key="ä" * 128 + "x"), refusal)


@scenario()
async def the_default_payload_limit_is_one_mebibyte_without_the_encoding(env: Env) -> None:
    queue = env.queue()
    fits = NewJob(queue, payload=(bytes(1 << 20), "e" * 1000))
    over = NewJob(queue, payload=(bytes((1 << 20) + 1), "e"))
    refusal = Rejection("payload_too_large", {"limit": 1 << 20, "actual": (1 << 20) + 1})
    await _edge(env, fits, over, refusal)
    assert (await env.reserve_one(queue)).payload == (bytes(1 << 20), "e" * 1000)


@scenario()
async def the_default_custom_limits_are_64_entries_256_key_bytes_and_16384_in_all(env: Env) -> None:
    queue = env.queue()
    await _edge(
        env,
        NewJob(queue, custom={f"{n}": True for n in range(64)}),
        NewJob(queue, custom={f"{n}": True for n in range(65)}),
        Rejection("custom_entries_too_many", {"limit": 64, "actual": 65}),
    )
    await _edge(
        env,
        NewJob(queue, custom={"k" * 256: 1}),
        NewJob(queue, custom={"k" * 257: 1}),
        Rejection("custom_key_too_long", {"key": "k" * 257, "limit": 256, "actual": 257}),
    )
    await _edge(
        env,
        NewJob(queue, custom={"k": "v" * 16383}),
        NewJob(queue, custom={"k": "v" * 16384}),
        Rejection("custom_map_too_large", {"limit": 16384, "actual": 16385}),
    )


@scenario()
async def the_default_schedule_horizon_is_thirty_days(env: Env) -> None:
    queue = env.queue()
    assert isinstance(await env.face.enqueue(NewJob(queue, scheduled_at=_in(30 * DAY - 5))), Ack)
    at = _in(30 * DAY + 5)
    result = await env.face.enqueue(NewJob(queue, scheduled_at=at))
    actual = (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    assert result == Rejection("scheduled_too_far", {"horizon": 30 * DAY, "actual": actual})


@scenario()
async def a_schedule_too_far_is_reported_exactly_as_sent(env: Env) -> None:
    job = new_job(env.queue())
    job.scheduled_at.seconds = int(time.time()) + 40 * 86_400
    job.scheduled_at.nanos = 123_456_789
    response = await env.face.call("EnqueueBatch", batch(job))
    rejection = response.results[0].rejection.scheduled_too_far
    assert rejection.actual == job.scheduled_at
    assert (rejection.horizon.seconds, rejection.horizon.nanos) == (30 * 86_400, 0)


@scenario(config=LIMITS)
async def configured_limits_pass_at_their_value_and_refuse_one_more(env: Env) -> None:
    queue = env.queue()
    name = queue + "q" * (128 - len(queue))
    edges = [
        (NewJob(name), NewJob(name + "q"), "queue_name_too_long", 128),
        (NewJob(queue, "t" * 16), NewJob(queue, "t" * 17), "job_type_name_too_long", 16),
        (NewJob(queue, key="k" * 16), NewJob(queue, key="k" * 17), "idempotency_key_too_long", 16),
        (
            NewJob(queue, payload=(bytes(32), "json")),
            NewJob(queue, payload=(bytes(33), "json")),
            "payload_too_large",
            32,
        ),
        (
            NewJob(queue, custom=dict.fromkeys("abc", True)),
            NewJob(queue, custom=dict.fromkeys("abcd", True)),
            "custom_entries_too_many",
            3,
        ),
        # Keys 1+1, a number 8, a double 8 and the rest text: 40 in all.
        (
            NewJob(queue, custom={"a": 1, "b": 1.0, "c": "ä" * 10 + "x"}),
            NewJob(queue, custom={"a": 1, "b": 1.0, "c": "ä" * 11}),
            "custom_map_too_large",
            40,
        ),
    ]
    for fits, over, reason, limit in edges:
        await _edge(env, fits, over, Rejection(reason, {"limit": limit, "actual": limit + 1}))
    await _edge(
        env,
        NewJob(queue, custom={"ä" * 4: 1}),
        NewJob(queue, custom={"ä" * 4 + "x": 1}),
        Rejection("custom_key_too_long", {"key": "ä" * 4 + "x", "limit": 8, "actual": 9}),
    )
    assert isinstance(await env.face.enqueue(NewJob(queue, scheduled_at=_in(58))), Ack)
    result = await env.face.enqueue(NewJob(queue, scheduled_at=_in(62)))
    assert isinstance(result, Rejection)
    assert (result.reason, result.fields["horizon"]) == ("scheduled_too_far", 60.0)


@scenario(config=LIMITS)
async def a_bool_counts_one_byte_and_a_number_eight(env: Env) -> None:
    queue = env.queue()
    # 1 + 1 for the bool, 1 + 8 for the number, 1 + 28 for the text.
    fits = NewJob(queue, custom={"b": True, "n": 7, "t": "x" * 28})
    over = NewJob(queue, custom={"b": True, "n": 7, "t": "x" * 29})
    refusal = Rejection("custom_map_too_large", {"limit": 40, "actual": 41})
    await _edge(env, fits, over, refusal)


@scenario(config=LIMITS)
async def a_queue_overrides_the_limits_of_its_jobs(env: Env) -> None:
    queue = env.declared("roomy")

    def job(**fields: object) -> NewJob:
        return NewJob(queue, "a", **fields)  # type: ignore[arg-type]

    await _edge(
        env,
        job(payload=(bytes(64), "bin")),
        job(payload=(bytes(65), "bin")),
        Rejection("payload_too_large", {"limit": 64, "actual": 65}),
    )
    await _edge(
        env,
        job(payload=(b"x", "bin")),
        job(payload=(b"x", "json")),
        Rejection("encoding_not_allowed", {"encoding": "json", "allowed": ["bin"]}),
    )
    await _edge(
        env,
        NewJob(queue, "b"),
        NewJob(queue, "A"),
        Rejection("job_type_not_allowed", {"job_type": "A", "allowed": ["a", "b"]}),
    )
    await _edge(
        env,
        job(custom=dict.fromkeys("abcd", True)),
        job(custom=dict.fromkeys("abcde", True)),
        Rejection("custom_entries_too_many", {"limit": 4, "actual": 5}),
    )
    await _edge(
        env,
        job(custom={"k" * 12: 1}),
        job(custom={"k" * 13: 1}),
        Rejection("custom_key_too_long", {"key": "k" * 13, "limit": 12, "actual": 13}),
    )
    await _edge(
        env,
        job(custom={"k": "v" * 59}),
        job(custom={"k": "v" * 60}),
        Rejection("custom_map_too_large", {"limit": 60, "actual": 61}),
    )
    assert isinstance(await env.face.enqueue(job(scheduled_at=_in(118))), Ack)
    result = await env.face.enqueue(job(scheduled_at=_in(122)))
    assert isinstance(result, Rejection)
    assert (result.reason, result.fields["horizon"]) == ("scheduled_too_far", 120.0)


@scenario(config=LIMITS)
async def only_listed_encodings_are_allowed_and_no_payload_always_is(env: Env) -> None:
    queue = env.queue()
    for encoding in ("json", "text"):
        assert isinstance(await env.face.enqueue(NewJob(queue, payload=(b"x", encoding))), Ack)
    for encoding in ("JSON", "json ", "bin"):
        refusal = Rejection(
            "encoding_not_allowed", {"encoding": encoding, "allowed": ["json", "text"]}
        )
        assert await env.face.enqueue(NewJob(queue, payload=(b"x", encoding))) == refusal
    assert isinstance(await env.face.enqueue(NewJob(queue)), Ack)


@scenario(config=LIMITS)
async def an_empty_list_of_encodings_allows_only_jobs_without_payload(env: Env) -> None:
    queue = env.declared("mute")
    refusal = Rejection("encoding_not_allowed", {"encoding": "json", "allowed": []})
    assert await env.face.enqueue(NewJob(queue, payload=(b"x", "json"))) == refusal
    assert isinstance(await env.face.enqueue(NewJob(queue)), Ack)


@scenario(config=LIMITS)
async def the_first_key_that_is_too_long_is_named_and_wins_over_the_total(env: Env) -> None:
    custom: dict[str, Primitive] = {"b" * 10: "x" * 50, "a" * 9: True, "c": True}
    result = await env.face.enqueue(NewJob(env.queue(), custom=custom))
    assert result == Rejection("custom_key_too_long", {"key": "a" * 9, "limit": 8, "actual": 9})


@scenario(config=LIMITS)
async def the_checks_of_a_job_come_in_their_order(env: Env) -> None:
    # Everything is wrong at once; repaired one after the other, each refusal is the next one.
    queue = env.declared("roomy")
    job = new_job(
        "q" * 129,
        "t" * 17,
        idempotency_key="k" * 17,
        payload=pb.Payload(data=bytes(65), encoding="nope"),
    )
    for n in range(5):
        job.custom[f"{n}" * 13].string_value = "v" * 60
    job.scheduled_at.seconds = int(time.time()) + 1000

    def fewer() -> None:
        del job.custom["4" * 13]

    def shorter_keys() -> None:
        for n in range(4):
            del job.custom[f"{n}" * 13]
        job.custom["k"].string_value = "v" * 60

    steps: list[tuple[str, Callable[[], object]]] = [
        ("queue_name_too_long", lambda: setattr(job, "queue", queue)),
        ("job_type_name_too_long", lambda: setattr(job, "job_type", "t")),
        ("job_type_not_allowed", lambda: setattr(job, "job_type", "a")),
        ("idempotency_key_too_long", lambda: setattr(job, "idempotency_key", "k")),
        ("payload_too_large", lambda: setattr(job.payload, "data", b"x")),
        ("encoding_not_allowed", lambda: setattr(job.payload, "encoding", "bin")),
        ("custom_entries_too_many", fewer),
        ("custom_key_too_long", shorter_keys),
        ("custom_map_too_large", lambda: setattr(job.custom["k"], "string_value", "v")),
        ("scheduled_too_far", lambda: job.ClearField("scheduled_at")),
    ]
    for reason, repair in steps:
        response = await env.face.call("EnqueueBatch", batch(job))
        assert response.results[0].rejection.WhichOneof("reason") == reason
        repair()
    response = await env.face.call("EnqueueBatch", batch(job))
    assert response.results[0].WhichOneof("outcome") == "success"


@scenario(config=STRICT)
async def strictness_comes_after_the_structure_and_before_the_lengths(env: Env) -> None:
    long = "q" * 65
    assert await env.face.enqueue(NewJob(long)) == Rejection("unknown_queue", {"queue": long})
    response = await env.face.call("EnqueueBatch", batch(new_job("undeclared", priority=10)))
    assert response.results[0].rejection.WhichOneof("reason") == "invalid_request"


@scenario(config=LIMITS)
async def what_is_not_sent_gets_the_global_defaults(env: Env) -> None:
    queue = env.queue()
    await env.enqueue(NewJob(queue))
    job = await env.reserve_one(queue)
    assert (job.priority, job.max_attempts) == (4, 2)


@scenario(config=LIMITS)
async def a_queue_has_its_own_defaults_and_ceiling(env: Env) -> None:
    queue = env.declared("roomy")
    (first,) = await env.enqueue(NewJob(queue, "a", priority=None))
    (second,) = await env.enqueue(NewJob(queue, "a", max_attempts=7, priority=8))
    jobs = {job.id: job for job in await _all(env, queue)}
    assert (jobs[first].priority, jobs[first].max_attempts) == (7, 3)
    assert (jobs[second].priority, jobs[second].max_attempts) == (8, 6)


@scenario(config=LIMITS)
async def max_attempts_is_cut_to_the_ceiling(env: Env) -> None:
    queue = env.queue()
    for sent, seen in ((1, 1), (5, 5), (6, 5), (2**32 - 1, 5)):
        await env.enqueue(NewJob(queue, max_attempts=sent))
        assert (await env.reserve_one(queue)).max_attempts == seen


@scenario()
async def unconfigured_defaults_are_priority_zero_three_attempts_and_a_ceiling_of_100(
    env: Env,
) -> None:
    queue = env.queue()
    await env.enqueue(NewJob(queue))
    job = await env.reserve_one(queue)
    assert (job.priority, job.max_attempts) == (0, 3)
    await env.enqueue(NewJob(queue, max_attempts=101))
    assert (await env.reserve_one(queue)).max_attempts == 100


@scenario(config=STRICT)
async def a_strict_server_rejects_jobs_for_undeclared_queues_only(env: Env) -> None:
    known, unknown = env.declared("familiar"), env.queue()
    results = await env.face.enqueue_batch([NewJob(known), NewJob(unknown), NewJob(known)])
    assert [type(result) for result in results] == [Ack, Rejection, Ack]
    assert results[1] == Rejection("unknown_queue", {"queue": unknown})


@scenario(config=STRICT)
async def a_strict_server_refuses_to_reserve_from_undeclared_queues(env: Env) -> None:
    unknown = env.queue()
    for queues in ([unknown], [env.declared("known"), unknown]):
        with refused("FAILED_PRECONDITION"):
            await env.face.reserve(queues)


@scenario(config=STRICT)
async def strictness_leaves_ack_nack_extend_and_drain_alone(env: Env) -> None:
    queue = env.declared("known")
    for step in ("ack", "nack", "extend"):
        await env.enqueue(NewJob(queue))
        job = await env.reserve_one(queue)
        if step == "nack":
            assert await env.face.nack(job, "dead_letter")
            continue
        if step == "extend":
            await env.face.extend(job, 5)
        await env.face.ack(job)
    assert await env.face.drain("an-undeclared-queue") == []
    assert len(await env.face.drain(queue)) == 1


async def _all(env: Env, queue: str) -> list[Delivery]:
    jobs: list[Delivery] = []
    while found := await env.face.reserve([queue], max_jobs=3):
        jobs += found
    return jobs
