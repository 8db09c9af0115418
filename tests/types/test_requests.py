"""Requests, reserve options, retry directives, retry policies, dead letters."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sepp_trio.retry import RetryPolicy
from sepp_trio.types import (
    DeadLetterCause,
    DeadLetterRecord,
    EnqueueAck,
    EnqueueRequest,
    Job,
    Payload,
    ReserveOptions,
    RetryDirective,
    TraceContext,
)
from sepp_trio.types._enqueue import _LONGEST_NAMES, _MOST_NAMES, _names

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TRACE = TraceContext("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")


def test_an_enqueue_request_leaves_everything_to_the_queue_by_default() -> None:
    request = EnqueueRequest("q", "t")
    assert request.payload is None
    assert request.idempotency_key is None
    assert request.priority is None
    assert request.max_attempts is None
    assert request.custom == {}
    assert request.trace_context is None
    assert request.scheduled_at is None
    assert hash(request) == hash(EnqueueRequest("q", "t"))


def test_an_enqueue_request_keeps_what_it_is_given() -> None:
    tokyo = NOW.astimezone(timezone(timedelta(hours=9)))
    request = EnqueueRequest(
        "q",
        "t",
        Payload(b"x", "raw"),
        idempotency_key="k",
        priority=9,
        max_attempts=1,
        custom={"a": 1},
        trace_context=TRACE,
        scheduled_at=tokyo,
    )
    assert request.scheduled_at is tokyo
    assert request.priority == 9


@pytest.mark.parametrize(
    ("members", "error", "words"),
    [
        ({"queue": ""}, ValueError, "queue must not be empty"),
        ({"queue": None}, TypeError, "queue must be a string, not NoneType"),
        ({"queue": "a/b"}, ValueError, "queue must not be"),
        ({"job_type": ""}, ValueError, "job_type must not be empty"),
        ({"job_type": 1}, TypeError, "job_type must be a string, not int"),
        ({"payload": b"x"}, TypeError, "payload must be a Payload, not bytes"),
        ({"idempotency_key": ""}, ValueError, "idempotency_key must not be empty"),
        ({"idempotency_key": 1}, TypeError, "idempotency_key must be a string, not int"),
        ({"priority": 10}, ValueError, "priority must be between 0 and 9, not 10"),
        ({"priority": -1}, ValueError, "priority must be between 0 and 9, not -1"),
        ({"priority": True}, TypeError, "priority must be an int, not bool"),
        ({"max_attempts": 0}, ValueError, "max_attempts must be between 1 and 4294967295, not 0"),
        ({"max_attempts": 2**32}, ValueError, "max_attempts must be between 1 and 4294967295"),
        ({"trace_context": "00"}, TypeError, "trace_context must be a TraceContext, not str"),
        ({"scheduled_at": datetime(2026, 1, 1)}, ValueError, "scheduled_at must have a time zone"),
        ({"scheduled_at": 5}, TypeError, "scheduled_at must be a datetime, not int"),
    ],
)
def test_a_wrong_enqueue_request_names_the_field_and_the_limit(
    members: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        EnqueueRequest(**{"queue": "q", "job_type": "t", **members})


def test_reserve_options_are_normalised() -> None:
    options = ReserveOptions(["a", "b"], timedelta(seconds=30), timedelta(milliseconds=500), "w", 3)
    assert options.queues == ("a", "b")
    assert options.lease_duration == 30.0
    assert options.wait_timeout == 0.5
    assert ReserveOptions(iter(["a"]), 1).queues == ("a",)  # type: ignore[arg-type]


def test_reserve_options_wait_for_thirty_seconds_by_default() -> None:
    options = ReserveOptions(("a",), 1)
    assert options.wait_timeout == 30.0
    assert options.worker_id is None
    assert options.max_jobs is None


@pytest.mark.parametrize(
    ("members", "error", "words"),
    [
        ({"queues": []}, ValueError, "at least one queue"),
        ({"queues": "emails"}, TypeError, "queues must be a sequence of names, not one str"),
        ({"queues": b"emails"}, TypeError, "queues must be a sequence of names, not one bytes"),
        ({"queues": None}, TypeError, "queues must be a sequence of names, not one NoneType"),
        ({"queues": ["a", ""]}, ValueError, "queues at index 1 must not be empty"),
        ({"queues": ["a", 1]}, TypeError, "queues at index 1 must be a string, not int"),
        ({"lease_duration": 0}, ValueError, "lease_duration must be more than 0 s, not 0"),
        ({"lease_duration": -1}, ValueError, "lease_duration must be more than 0 s, not -1"),
        ({"lease_duration": "30"}, TypeError, "lease_duration must be seconds or a timedelta"),
        ({"wait_timeout": -1}, ValueError, "wait_timeout must be at least 0 s, not -1"),
        ({"worker_id": ""}, ValueError, "worker_id must not be empty"),
        ({"max_jobs": 0}, ValueError, "max_jobs must be between 1 and 4294967295, not 0"),
        ({"max_jobs": -1}, ValueError, "max_jobs must be between 1 and 4294967295, not -1"),
    ],
)
def test_wrong_reserve_options_name_the_field_and_the_limit(
    members: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        ReserveOptions(**{"queues": ["q"], "lease_duration": 30, **members})


def test_retry_directives() -> None:
    assert RetryDirective.DEFAULT.kind == "default"
    assert RetryDirective.DEAD_LETTER.kind == "dead_letter"
    assert RetryDirective.after(timedelta(seconds=2)) == RetryDirective("after", 2.0)
    assert RetryDirective.after(0).delay == 0.0
    assert RetryDirective.DEFAULT.delay is None


@pytest.mark.parametrize(
    ("kind", "delay", "words"),
    [
        ("later", None, "kind must be default, after or dead_letter, not 'later'"),
        ("after", None, "delay must be given"),
        ("after", -1, "delay must be at least 0 s, not -1"),
        ("default", 1.0, "delay has no use with kind 'default'"),
        ("dead_letter", 0.0, "delay has no use with kind 'dead_letter'"),
    ],
)
def test_wrong_retry_directives_are_refused(kind: Any, delay: float | None, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        RetryDirective(kind, delay)


def test_a_retry_policy_makes_one_attempt_by_default() -> None:
    assert RetryPolicy().max_attempts == 1
    assert RetryPolicy(initial_backoff=timedelta(seconds=1)).initial_backoff == 1.0


@pytest.mark.parametrize(
    ("members", "error", "words"),
    [
        ({"max_attempts": 0}, ValueError, "max_attempts must be between 1"),
        ({"max_attempts": 1.5}, TypeError, "max_attempts must be an int"),
        ({"initial_backoff": 0}, ValueError, "initial_backoff must be more than 0 s"),
        ({"max_backoff": -1}, ValueError, "max_backoff must be more than 0 s"),
        ({"multiplier": 0.5}, ValueError, "multiplier must be at least 1 and finite, not 0.5"),
        ({"multiplier": float("nan")}, ValueError, "multiplier must be at least 1"),
        ({"multiplier": float("inf")}, ValueError, "multiplier must be at least 1 and finite"),
        ({"multiplier": "2"}, TypeError, "multiplier must be a number, not str"),
        ({"multiplier": True}, TypeError, "multiplier must be a number, not bool"),
        ({"jitter": 1}, TypeError, "jitter must be a bool, not int"),
    ],
)
def test_a_wrong_retry_policy_names_the_field_and_the_limit(
    members: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        RetryPolicy(**members)


def test_pauses_grow_up_to_their_limit() -> None:
    policy = RetryPolicy(5, initial_backoff=0.1, max_backoff=0.35, multiplier=2, jitter=False)
    assert [policy.backoff(attempt) for attempt in (1, 2, 3, 4)] == [0.1, 0.2, 0.35, 0.35]
    assert policy.backoff(10**6) == 0.35
    # Nor does it take its time, or overflow, with a multiplier that is an int.
    for multiplier in (2, 10**400):
        many = RetryPolicy(multiplier=multiplier, jitter=False)
        assert many.backoff(2**32 - 1) == 10
    assert RetryPolicy(initial_backoff=99, max_backoff=1, jitter=False).backoff(1) == 1


@given(st.integers(1, 60), st.floats(0, 1, exclude_max=True))
def test_jitter_takes_at_most_half_of_a_pause(attempt: int, chance: float) -> None:
    whole = RetryPolicy(jitter=False).backoff(attempt)
    assert whole / 2 <= RetryPolicy().backoff(attempt, lambda: chance) <= whole


def test_a_job_says_what_it_is() -> None:
    job = Job("some-id", "q", "welcome", None, 0, 2, 3, NOW, NOW)
    assert str(job) == "job some-id (welcome, attempt 2/3)"
    assert job.lease_deadline is None
    assert job == Job("some-id", "q", "welcome", None, 0, 2, 3, NOW, NOW, lease_deadline=5.0)


def record(**members: Any) -> DeadLetterRecord:
    values: dict[str, Any] = {
        "job_id": "some-id",
        "queue": "q",
        "job_type": "t",
        "payload": Payload(b"x", "raw"),
        "priority": 7,
        "max_attempts": 5,
        "enqueued_at": NOW,
        "cause": DeadLetterCause.REJECTED,
        "failed_at": NOW,
        "final_attempt": 5,
        "scheduled_at": NOW,
        "custom": {"a": 1},
        "trace_context": TRACE,
    }
    return DeadLetterRecord(**{**values, **members})


def test_a_dead_letter_replays_into_its_queue_without_its_schedule() -> None:
    assert record().to_enqueue_request() == EnqueueRequest(
        "q",
        "t",
        Payload(b"x", "raw"),
        priority=7,
        max_attempts=5,
        custom={"a": 1},
        trace_context=TRACE,
    )


def test_a_dead_letter_without_a_part_replays_without_it() -> None:
    request = record(
        payload=None, custom={}, trace_context=None, max_attempts=0
    ).to_enqueue_request()
    assert request == EnqueueRequest("q", "t", priority=7)


def test_values_are_frozen() -> None:
    with pytest.raises(AttributeError):
        EnqueueAck("id", False).job_id = "other"  # type: ignore[misc]
    with pytest.raises(AttributeError):
        record().queue = "other"  # type: ignore[misc]


def test_what_has_passed_once_excuses_nothing_else() -> None:
    """The names of a request are remembered when they are good: not what comes with them."""
    for _ in range(2):
        assert EnqueueRequest("q", "t", Payload(b"x", "raw"), idempotency_key="é").queue == "q"
    for wrong in (
        {"payload": b"x"},
        {"idempotency_key": ""},
        {"idempotency_key": "\udc00"},
        {"idempotency_key": 5},
        {"custom": None},
        {"custom": {"": 1}},
        {"priority": 10},
        {"max_attempts": 0},
        {"trace_context": "00"},
        {"scheduled_at": 5},
        {"queue": "t/"},
        {"job_type": "\udc00"},
    ):
        with pytest.raises((TypeError, ValueError)):
            EnqueueRequest(**{"queue": "q", "job_type": "t", **wrong})  # type: ignore[arg-type]


def test_remembered_names_are_bounded() -> None:
    for index in range(_MOST_NAMES + 10):
        EnqueueRequest("q", f"t{index}")
    EnqueueRequest("q", "t" * _LONGEST_NAMES)
    assert len(_names) <= _MOST_NAMES
    assert max(len(queue) + len(job_type) for queue, job_type in _names) <= _LONGEST_NAMES


def test_a_subclass_is_checked_and_frozen_too() -> None:
    class Welcome(EnqueueRequest):
        def __init__(self, queue: str) -> None:
            super().__init__(queue, "welcome", priority=3)

    @dataclasses.dataclass(frozen=True)
    class Tagged(EnqueueRequest):
        tag: str = ""

    request = Welcome("q")
    assert (request.queue, request.job_type, request.priority) == ("q", "welcome", 3)
    assert (request.custom, request.scheduled_at) == ({}, None)
    assert Tagged("q", "t", tag="x").tag == "x"
    for make in (Welcome, lambda queue: Tagged(queue, "t")):
        with pytest.raises(ValueError, match="queue must not be"):
            make("a/b")
    with pytest.raises(dataclasses.FrozenInstanceError):
        request.queue = "other"  # type: ignore[misc]
