"""Sections 3.3, 3.4, 3.7: idempotency keys, all-or-nothing batches and full queues."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from tests.conformance.configs import CAPS, DEDUP, RETAINING, STRICT
from tests.conformance.face import Ack, AtomicRefused, NewJob, Rejection, refused
from tests.conformance.registry import scenario

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.conformance.registry import Env


def full(queue: str, limit: int) -> Rejection:
    return Rejection("queue_full", {"queue": queue, "limit": limit})


async def _atomic_errors(env: Env, jobs: Sequence[NewJob]) -> list[tuple[int, Rejection]]:
    with pytest.raises(AtomicRefused) as caught:
        await env.face.enqueue_atomic(jobs)
    return caught.value.errors


@scenario()
async def a_known_key_gives_the_first_id_and_drops_the_second_job(env: Env) -> None:
    queue = env.queue()
    (first,) = await env.enqueue(NewJob(queue, "one", key="k"))
    for again in (NewJob(queue, "two", key="k"), NewJob(queue, "one", (b"x", "e"), "k", 9)):
        assert await env.face.enqueue_batch([again]) == [Ack(first, True)]
        assert await env.face.enqueue_atomic([again]) == [Ack(first, True)]
    (job,) = await env.face.reserve([queue], max_jobs=9)
    assert (job.id, job.job_type, job.payload) == (first, "one", None)


@scenario()
async def keys_belong_to_their_queue(env: Env) -> None:
    first, second = env.queue("a"), env.queue("b")
    assert len(set(await env.enqueue(NewJob(first, key="k"), NewJob(second, key="k")))) == 2
    await env.enqueue(NewJob(first, key="K"), NewJob(first, key="k "))


@scenario()
async def the_same_key_twice_in_a_batch_is_one_job(env: Env) -> None:
    queue = env.queue()
    first, second, third = await env.face.enqueue_batch(
        [NewJob(queue, "one", key="k"), NewJob(queue), NewJob(queue, "two", key="k")]
    )
    assert isinstance(first, Ack)
    assert isinstance(second, Ack)
    assert third == Ack(first.job_id, True)
    assert {job.job_type for job in await env.face.reserve([queue], max_jobs=9)} == {"one", "task"}
    queue = env.queue()
    one, two = await env.face.enqueue_atomic([NewJob(queue, key="k")] * 2)
    assert (one.deduplicated, two) == (False, Ack(one.job_id, True))


@scenario()
async def a_key_stays_taken_after_the_ack(env: Env) -> None:
    queue = env.queue()
    (job_id,) = await env.enqueue(NewJob(queue, key="k"))
    await env.face.ack(await env.reserve_one(queue))
    assert await env.face.enqueue_batch([NewJob(queue, key="k")]) == [Ack(job_id, True)]
    assert await env.is_empty(queue)


@scenario(config=RETAINING)
async def a_key_stays_taken_after_the_dead_letter_and_its_drain(env: Env) -> None:
    queue = env.queue()
    (job_id,) = await env.enqueue(NewJob(queue, key="k"))
    await env.face.nack(await env.reserve_one(queue), "dead_letter")
    assert await env.face.enqueue_batch([NewJob(queue, key="k")]) == [Ack(job_id, True)]
    assert len(await env.face.drain(queue)) == 1
    assert await env.face.enqueue_batch([NewJob(queue, key="k")]) == [Ack(job_id, True)]


@scenario(config=DEDUP)
async def a_key_is_free_after_its_window_which_a_hit_does_not_move(env: Env) -> None:
    queue = env.queue()
    (first,) = await env.enqueue(NewJob(queue, key="k"))
    await env.sleep(1.0)
    assert await env.face.enqueue_batch([NewJob(queue, key="k")]) == [Ack(first, True)]
    await env.sleep(4.5)  # 5.5 s after the first, 4.5 s after the hit: the window is 5 s
    (second,) = await env.enqueue(NewJob(queue, key="k"))
    assert second != first
    assert len(await env.face.reserve([queue], max_jobs=9)) == 2


@scenario(config=DEDUP)
async def a_queue_overrides_the_window(env: Env) -> None:
    queue = env.declared("memorious")
    (first,) = await env.enqueue(NewJob(queue, key="k"))
    await env.sleep(5.5)
    assert await env.face.enqueue_batch([NewJob(queue, key="k")]) == [Ack(first, True)]


@scenario(config=CAPS)
async def a_rejected_job_does_not_take_its_key(env: Env) -> None:
    queue = env.queue()
    await env.enqueue(*[NewJob(queue)] * 3)
    for job in (NewJob(queue, key="k"), NewJob(queue, "t" * 300, key="k")):
        (result,) = await env.face.enqueue_batch([job])
        assert isinstance(result, Rejection)
    await env.face.ack(await env.reserve_one(queue))
    await env.enqueue(NewJob(queue, key="k"))


@scenario(config=STRICT)
async def a_repeated_key_must_still_pass_the_checks(env: Env) -> None:
    queue = env.declared("known")
    await env.enqueue(NewJob(queue, "kind", key="pre-flight"))
    (result,) = await env.face.enqueue_batch([NewJob(queue, "t" * 300, key="pre-flight")])
    assert isinstance(result, Rejection)
    assert result.reason == "job_type_name_too_long"


@scenario()
async def an_atomic_batch_is_taken_whole(env: Env) -> None:
    first, second = env.queue("a"), env.queue("b")
    acks = await env.face.enqueue_atomic([NewJob(first, "1"), NewJob(second, "2")])
    assert (await env.reserve_one(first)).id == acks[0].job_id
    assert (await env.reserve_one(second)).id == acks[1].job_id
    assert not any(ack.deduplicated for ack in acks)


@scenario()
async def an_atomic_batch_with_bad_jobs_lists_each_once_and_stores_nothing(env: Env) -> None:
    queue = env.queue()
    jobs = [
        NewJob(queue, key="k"),
        NewJob("q" * 513, "t" * 300),
        NewJob(queue),
        NewJob(queue, "t" * 300, custom={"k" * 300: 1}),
        NewJob(queue, custom={"k" * 300: 1}),
    ]
    errors = await _atomic_errors(env, jobs)
    assert [(index, rejection.reason) for index, rejection in errors] == [
        (1, "queue_name_too_long"),
        (3, "job_type_name_too_long"),
        (4, "custom_key_too_long"),
    ]
    assert await env.is_empty(queue)
    await env.enqueue(NewJob(queue, key="k"))  # nor did it take the key


@scenario(config=CAPS)
async def a_full_queue_refuses_one_more(env: Env) -> None:
    queue = env.queue()
    results = await env.face.enqueue_batch([NewJob(queue)] * 4)
    assert [type(result) for result in results] == [Ack, Ack, Ack, Rejection]
    assert results[3] == full(queue, 3)
    await env.enqueue(NewJob(env.queue("other")))


@scenario(config=CAPS)
async def depth_counts_ready_scheduled_and_leased_jobs(env: Env) -> None:

    queue = env.queue()
    later = datetime.fromtimestamp(time.time() + 60, tz=UTC)
    await env.enqueue(NewJob(queue), NewJob(queue), NewJob(queue, scheduled_at=later))
    leased = await env.reserve_one(queue)
    assert await env.face.enqueue_batch([NewJob(queue)]) == [full(queue, 3)]
    await env.face.nack(leased, 60.0)
    assert await env.face.enqueue_batch([NewJob(queue)]) == [full(queue, 3)]
    await env.face.ack(await env.reserve_one(queue))
    await env.enqueue(NewJob(queue))


@scenario(config=CAPS)
async def dead_letters_do_not_count_as_depth(env: Env) -> None:
    queue = env.queue()
    await env.enqueue(*[NewJob(queue)] * 3)
    await env.face.nack(await env.reserve_one(queue), "dead_letter")
    await env.enqueue(NewJob(queue))
    assert len(await env.face.drain(queue)) == 1


@scenario(config=CAPS)
async def a_known_key_passes_a_full_queue_in_a_batch_but_not_in_an_atomic_one(env: Env) -> None:
    queue = env.queue()
    ids = await env.enqueue(*[NewJob(queue, key=key) for key in "abc"])
    again = [NewJob(queue, key=key) for key in "abc"]
    assert await env.face.enqueue_batch(again) == [Ack(job_id, True) for job_id in ids]
    assert await _atomic_errors(env, again) == [(n, full(queue, 3)) for n in range(3)]


@scenario(config=CAPS)
async def an_atomic_batch_that_does_not_fit_lists_every_job_of_the_queue(env: Env) -> None:
    queue, other = env.queue("full"), env.queue("other")
    await env.enqueue(NewJob(queue))
    jobs = [NewJob(other), NewJob(queue), NewJob(queue), NewJob(queue), NewJob(other)]
    assert await _atomic_errors(env, jobs) == [(n, full(queue, 3)) for n in (1, 2, 3)]
    assert await env.is_empty(other)
    assert len(await env.face.reserve([queue], max_jobs=9)) == 1
    await env.face.enqueue_atomic([NewJob(queue), NewJob(queue)])  # exactly full


@scenario(config=CAPS)
async def the_stages_of_an_atomic_batch_do_not_mix(env: Env) -> None:
    queue = env.queue()
    jobs = [NewJob(queue)] * 4 + [NewJob(queue, "t" * 300)]
    errors = await _atomic_errors(env, jobs)
    assert [(n, rejection.reason) for n, rejection in errors] == [(4, "job_type_name_too_long")]


@scenario(config=CAPS)
async def a_cap_of_zero_shuts_the_queue_and_another_widens_it(env: Env) -> None:
    shut, wide = env.declared("shut"), env.declared("wide")
    assert await env.face.enqueue_batch([NewJob(shut)]) == [full(shut, 0)]
    assert await _atomic_errors(env, [NewJob(shut)]) == [(0, full(shut, 0))]
    results = await env.face.enqueue_batch([NewJob(wide)] * 6)
    assert isinstance(results[4], Ack)
    assert results[5] == full(wide, 5)


@scenario(config=CAPS)
async def a_full_queue_takes_one_again_after_an_ack(env: Env) -> None:
    queue = env.queue()
    await env.enqueue(*[NewJob(queue)] * 3)
    for _ in range(3):
        assert await env.face.enqueue_batch([NewJob(queue)]) == [full(queue, 3)]
        await env.face.ack(await env.reserve_one(queue))
        await env.enqueue(NewJob(queue))


@scenario()
async def an_acked_job_cannot_be_acked_by_the_id_of_its_repeat(env: Env) -> None:
    queue = env.queue()
    await env.enqueue(NewJob(queue, key="k"))
    job = await env.reserve_one(queue)
    await env.face.ack(job)
    await env.face.enqueue_batch([NewJob(queue, key="k")])
    with refused("NOT_FOUND"):
        await env.face.ack(job)
