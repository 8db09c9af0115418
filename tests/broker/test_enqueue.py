"""What becomes of enqueued jobs: defaults, keys, caps, batches."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sepp_trio.broker.config import QueueConfig
from sepp_trio.wire import custom_of, records, trace_context_of

from .helpers import DAY, START, Rig, config, from_wire, job, ms, status_of

MakeRig = Callable[..., Rig]


def test_a_job_comes_out_as_it_went_in(rig: Rig) -> None:
    custom = {
        "text": records.PrimitiveValue(string_value="é"),
        "ratio": records.PrimitiveValue(double_value=0.5),
        "count": records.PrimitiveValue(int_value=-(2**63)),
        "flag": records.PrimitiveValue(bool_value=False),
    }
    job_id = rig.add(
        "queue with blanks",
        job_type="type",
        payload=records.Payload(b"\x00\xff", "raw"),
        priority=7,
        max_attempts=5,
        trace_context=records.TraceContext("parent", "state"),
        custom=custom,
        scheduled_at=(-5, 123_456_789),
    )
    rig.now += 10
    taken = rig.take("queue with blanks", lease=1000)
    assert custom_of(taken) == custom
    assert trace_context_of(taken) == records.TraceContext("parent", "state")
    taken.custom, taken.trace_context = b"", None
    assert taken == records.Job(
        id=job_id,
        job_type="type",
        payload=records.Payload(b"\x00\xff", "raw"),
        priority=7,
        enqueued_at=ms(START),
        attempt=1,
        max_attempts=5,
        lease_expires_at=ms(START + 1010),
        scheduled_at=(-5, 123_456_789),
        queue="queue with blanks",
    )


def test_a_job_without_options_gets_the_defaults_of_its_queue(make_rig: MakeRig) -> None:
    own = QueueConfig("own", default_priority=4, default_max_attempts=2)
    rig = make_rig(config(own, default_priority=1, default_max_attempts=9))
    rig.add("own")
    rig.add("other")
    jobs = rig.reserve("own", "other", max_jobs=2)
    assert [(one.priority, one.max_attempts) for one in jobs] == [(4, 2), (1, 9)]
    assert jobs[0].payload is None
    assert jobs[0].scheduled_at is None


def test_max_attempts_are_cut_to_the_ceiling(make_rig: MakeRig) -> None:
    rig = make_rig(config(QueueConfig("low", max_attempts_ceiling=3)))
    rig.add("low", max_attempts=2**32 - 1)
    rig.add("q", max_attempts=2**32 - 1)
    assert [one.max_attempts for one in rig.reserve("low", "q", max_jobs=2)] == [3, 100]


def test_all_jobs_of_a_request_have_one_time(rig: Rig) -> None:
    rig.enqueue(job(), job())
    assert {one.enqueued_at for one in rig.reserve(max_jobs=2)} == {ms(START)}


def test_a_batch_of_none_or_of_too_many_is_refused(make_rig: MakeRig) -> None:
    rig = make_rig(config(max_enqueue_batch=2))
    assert status_of(rig.enqueue) == "INVALID_ARGUMENT"
    assert status_of(rig.atomic) == "INVALID_ARGUMENT"
    assert status_of(rig.enqueue, job(), job()) == "OK"
    assert status_of(rig.enqueue, job(), job(), job()) == "INVALID_ARGUMENT"
    assert rig.depth() == 2


def test_a_bad_job_leaves_the_others_of_its_batch_alone(rig: Rig) -> None:
    first, bad, last = rig.enqueue(job(), job(job_type=""), job())
    assert first.success is not None
    assert last.success is not None
    assert bad.rejection is not None
    assert bad.rejection.invalid_request is not None
    assert rig.depth() == 2


# ---- Idempotency keys ----


def test_a_known_key_gives_the_first_job_back(rig: Rig) -> None:
    first = rig.add(idempotency_key="k")
    (again,) = rig.enqueue(job(idempotency_key="k", job_type="other"))
    assert again.success == records.EnqueueResponse(first, deduplicated=True)
    assert rig.depth() == 1


def test_a_key_belongs_to_its_queue(rig: Rig) -> None:
    assert rig.add("a", idempotency_key="k") != rig.add("b", idempotency_key="k")


def test_a_key_within_one_batch_counts_at_once(rig: Rig) -> None:
    first, second = rig.enqueue(job(idempotency_key="k"), job(idempotency_key="k"))
    assert first.success is not None
    assert second.success == records.EnqueueResponse(first.success.job_id, deduplicated=True)
    answer = rig.atomic(job(idempotency_key="n"), job(idempotency_key="n"))
    assert answer.success is not None
    assert [one.deduplicated for one in answer.success.responses] == [False, True]


def test_a_key_is_taken_for_its_window_and_not_longer(make_rig: MakeRig) -> None:
    rig = make_rig(config(QueueConfig("short", dedup_window_ms=100)))
    first = rig.add("short", idempotency_key="k")
    rig.now += 99
    assert rig.add("short", idempotency_key="k") == first
    rig.now += 1
    second = rig.add("short", idempotency_key="k")
    assert second != first
    rig.now += 99
    assert rig.add("short", idempotency_key="k") == second
    assert rig.add("q", idempotency_key="k") == rig.add("q", idempotency_key="k")
    rig.now = START + DAY + 99
    assert rig.depth("q") == 1


def test_a_key_that_has_lapsed_is_free_even_if_nobody_swept(rig: Rig) -> None:
    first = rig.add(idempotency_key="k")
    rig.now += DAY
    with rig.store.transaction():
        (again,) = rig.engine.enqueue_batch([job(idempotency_key="k")], rig.now).results
    assert again.success is not None
    assert not again.success.deduplicated
    assert again.success.job_id != first


def test_a_key_stays_taken_after_the_ack(rig: Rig) -> None:
    job_id = rig.add(idempotency_key="k")
    rig.take()
    rig.ack(job_id)
    assert rig.add(idempotency_key="k") == job_id
    assert rig.depth() == 0


def test_a_rejected_job_takes_no_key(make_rig: MakeRig) -> None:
    rig = make_rig(config(max_queue_depth=1))
    rig.add()
    (full,) = rig.enqueue(job(idempotency_key="k"))
    assert full.rejection == records.JobRejection(queue_full=records.QueueFull("q", 1))
    rig.enqueue(job("q2", idempotency_key="k", job_type=""))
    assert rig.add("q2", idempotency_key="k")


# ---- Caps ----


def test_a_full_queue_takes_known_keys_only(make_rig: MakeRig) -> None:
    rig = make_rig(config(QueueConfig("none", max_queue_depth=0), max_queue_depth=2))
    first = rig.add(idempotency_key="k")
    results = rig.enqueue(job(), job(), job(idempotency_key="k"))
    full = records.JobRejection(queue_full=records.QueueFull("q", 2))
    assert [one.rejection for one in results] == [None, full, None]
    assert results[2].success == records.EnqueueResponse(first, deduplicated=True)
    (zero,) = rig.enqueue(job("none"))
    assert zero.rejection == records.JobRejection(queue_full=records.QueueFull("none", 0))


@pytest.mark.parametrize("place", ["ready", "scheduled", "leased"])
def test_depth_counts_jobs_wherever_they_are(make_rig: MakeRig, place: str) -> None:
    rig = make_rig(config(max_queue_depth=1))
    rig.add(scheduled_at=ms(START + 1000) if place == "scheduled" else None)
    if place == "leased":
        rig.take()
    (result,) = rig.enqueue(job())
    assert result.rejection is not None


def test_depth_falls_when_a_job_ends(make_rig: MakeRig) -> None:
    retained = {"dead_letter_retention_ms": 1000}
    rig = make_rig(config(max_queue_depth=1, storage=retained))
    rig.ack(rig.add() and rig.take().id)
    rig.nack(rig.add() and rig.take().id, dead=True)
    rig.add(max_attempts=1)
    rig.take(lease=10)
    rig.now += 10
    assert rig.depth() == 0
    assert rig.add()


# ---- Atomic batches ----


def test_an_atomic_batch_stores_all_or_nothing(rig: Rig) -> None:
    answer = rig.atomic(job(), job(job_type=""), job(), job(queue=""))
    assert answer.success is None
    assert answer.rejection is not None
    assert [error.index for error in answer.rejection.errors] == [1, 3]
    assert rig.depth() == 0
    answer = rig.atomic(job(), job("r"))
    assert answer.success is not None
    assert [one.id for one in rig.reserve("q", "r", max_jobs=5)] == [
        one.job_id for one in answer.success.responses
    ]


def test_an_atomic_batch_over_the_cap_names_every_job_of_that_queue(make_rig: MakeRig) -> None:
    rig = make_rig(config(QueueConfig("free", max_queue_depth=100), max_queue_depth=2))
    answer = rig.atomic(job(), job("free"), job(), job(), job("r"))
    assert answer.rejection is not None
    full = records.JobRejection(queue_full=records.QueueFull("q", 2))
    assert [(error.index, error.rejection) for error in answer.rejection.errors] == [
        (0, full),
        (2, full),
        (3, full),
    ]
    assert rig.depth("free") == rig.depth("r") == 0
    assert rig.atomic(job(), job(), job("r")).success is not None


def test_known_keys_count_as_new_jobs_in_an_atomic_batch(make_rig: MakeRig) -> None:
    rig = make_rig(config(max_queue_depth=1))
    job_id = rig.add(idempotency_key="k")
    assert rig.atomic(job(idempotency_key="k")).rejection is not None
    (same,) = rig.enqueue(job(idempotency_key="k"))
    assert same.success == records.EnqueueResponse(job_id, deduplicated=True)


def test_faults_of_jobs_come_before_full_queues_in_an_atomic_batch(make_rig: MakeRig) -> None:
    rig = make_rig(config(max_queue_depth=0))
    answer = rig.atomic(job(), job(job_type=""))
    assert answer.rejection is not None
    assert [error.index for error in answer.rejection.errors] == [1]


# ---- Schedules ----


def test_a_scheduled_job_shows_when_it_is_due(rig: Rig) -> None:
    rig.add(scheduled_at=(START // 1000 + 1, 999_999))  # cut to the millisecond
    rig.now += 999
    assert rig.reserve() == []
    rig.now += 1
    assert from_wire(rig.take().scheduled_at) == START + 1000


def test_a_promoted_job_goes_before_younger_ones(rig: Rig) -> None:
    old = rig.add(scheduled_at=ms(START + 1000))
    rig.now += 10
    young = rig.add()
    rig.now += 990
    assert [one.id for one in rig.reserve(max_jobs=2)] == [old, young]


def test_a_schedule_in_the_past_is_now(rig: Rig) -> None:
    for when in [ms(START), (0, 0), (-(2**63), -(2**31)), (0, -1)]:
        rig.add(scheduled_at=when)
        assert rig.take().scheduled_at == when
