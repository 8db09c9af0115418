"""Dead letters: which there are, what they say, how long they stay."""

from __future__ import annotations

from collections.abc import Callable

from sepp_trio.broker.engine import Cause
from sepp_trio.broker.validation import drain_limit
from sepp_trio.wire import custom_of, records, trace_context_of

from .helpers import START, Rig, config, from_wire, job, ms, status_of

MakeRig = Callable[..., Rig]
RETAINED = {"dead_letter_retention_ms": 10_000}


def test_a_dead_letter_holds_the_whole_job(make_rig: MakeRig) -> None:
    rig = make_rig(config(storage=RETAINED))
    rig.add(
        payload=records.Payload(b"data", "raw"),
        priority=3,
        idempotency_key="k",
        custom={"a": records.PrimitiveValue(int_value=1)},
        trace_context=records.TraceContext("parent"),
        scheduled_at=(1, 5),
    )
    taken = rig.take()
    rig.now += 7
    assert rig.nack(taken.id, dead=True, reason="no such user")
    (letter,) = rig.drain()
    assert letter.cause == Cause.REJECTED
    assert from_wire(letter.failed_at) == START + 7
    assert (letter.final_attempt, letter.last_reason) == (1, "no such user")
    assert custom_of(letter.job) == {"a": records.PrimitiveValue(int_value=1)}
    assert trace_context_of(letter.job) == records.TraceContext("parent")
    taken.lease_expires_at = (0, 0)
    assert letter.job == taken


def test_the_cause_says_how_it_ended(make_rig: MakeRig) -> None:
    rig = make_rig(config(storage=RETAINED))
    for end in (Cause.ATTEMPTS_EXHAUSTED, Cause.REJECTED, Cause.LEASE_EXPIRED):
        rig.now += 1
        job_id = rig.add(max_attempts=2)
        rig.nack(rig.take().id, reason="first")
        rig.take(lease=10)
        if end is Cause.LEASE_EXPIRED:
            rig.now += 10
            assert rig.reserve() == []
        else:
            assert rig.nack(job_id, 2, dead=end is Cause.REJECTED, reason="second")
    letters = rig.drain(max_=9)
    assert [(one.cause, one.final_attempt, one.last_reason) for one in letters] == [
        (Cause.ATTEMPTS_EXHAUSTED, 2, "second"),
        (Cause.REJECTED, 2, "second"),
        (Cause.LEASE_EXPIRED, 2, None),
    ]
    assert {one.job.attempt for one in letters} == {2}


def test_an_empty_reason_is_a_reason(make_rig: MakeRig) -> None:
    rig = make_rig(config(storage=RETAINED))
    for reason in (None, ""):
        rig.now += 1
        rig.nack(rig.add() and rig.take().id, dead=True, reason=reason)
    assert [letter.last_reason for letter in rig.drain(max_=2)] == [None, ""]


def test_nothing_is_kept_unless_it_is_asked_for(rig: Rig) -> None:
    rig.add()
    assert rig.nack(rig.take().id, dead=True)
    assert rig.drain() == []


def test_a_drain_removes_the_oldest_first(make_rig: MakeRig) -> None:
    rig = make_rig(config(max_reserve_batch=2, storage=RETAINED))
    added = []
    for queue in ("a", "b", "a", "b", "a"):
        added.append(rig.add(queue))
        rig.nack(rig.take(queue).id, dead=True)
        rig.now += 1
    assert [one.job.id for one in rig.drain()] == added[:1]
    assert [one.job.id for one in rig.drain("a", 9)] == [added[2], added[4]]
    assert [one.job.id for one in rig.drain(max_=9)] == [added[1], added[3]]
    assert rig.drain("nobody") == rig.drain() == []


def test_a_drain_of_one_queue_sees_so_many_and_no_further(make_rig: MakeRig) -> None:
    rig = make_rig(config(storage=RETAINED | {"sweep_limit": 3}))
    for queue in ("a", "a", "a", "b"):
        rig.add(queue)
        rig.nack(rig.take(queue).id, dead=True)
        rig.now += 1
    assert rig.drain("b") == []
    assert len(rig.drain("a")) == 1
    assert len(rig.drain("b")) == 1


def test_dead_letters_leave_when_their_time_is_over(make_rig: MakeRig) -> None:
    rig = make_rig(config(storage=RETAINED))
    for _ in range(2):
        rig.add()
        rig.nack(rig.take().id, dead=True)
        rig.now += 1
    rig.now = START + 10_000
    assert [from_wire(one.failed_at) for one in rig.drain(max_=9)] == [START + 1]


def test_a_malformed_drain_is_refused(rig: Rig) -> None:
    for queue, max_, status in [
        ("", 1, "INVALID_ARGUMENT"),
        ("q", 0, "INVALID_ARGUMENT"),
        ("a/b", 2**32 - 1, "OK"),
        (None, None, "OK"),
    ]:
        request = records.DrainDeadLettersRequest(queue, max_)
        assert status_of(drain_limit, rig.config, request) == status


def test_letters_of_an_earlier_run_can_be_drained_without_retention(make_rig: MakeRig) -> None:
    rig = make_rig(config(storage=RETAINED))
    rig.add(scheduled_at=ms(START))
    rig.nack(rig.take().id, dead=True)
    rig.config = config()
    if rig.path is not None:
        rig.reopen()
        rig.now += 10**9
    assert len(rig.drain()) == 1
    assert rig.reserve() == []
    rig.enqueue(job())
