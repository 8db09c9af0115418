"""Jobs and dead letters from the wire, the bad ones included (trials 74, 76)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sepp_trio import types
from sepp_trio.wire import encode, encode_custom, encode_trace_context, records
from sepp_trio.wire.convert import (
    MalformedJob,
    cause_from_wire,
    cause_to_wire,
    custom_from_wire,
    dead_letter_from_wire,
    job_from_wire,
)
from tests.wire.request_records import record_of_value

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
GOOD = records.Job(
    id="the-id",
    job_type="welcome",
    payload=records.Payload(b"{}", "json"),
    priority=9,
    trace_context=encode_trace_context(records.TraceContext(TRACEPARENT, "a=b")),
    enqueued_at=(1_764_430_000, 123_000_000),
    attempt=2,
    max_attempts=3,
    lease_expires_at=(1_764_430_030, 0),
    custom=encode_custom({"tenant": records.PrimitiveValue(string_value="")}),
    scheduled_at=(-1, 0),
    queue="emails",
)


def test_a_lease_that_ends_beyond_all_datetimes_does_not_cost_the_job() -> None:
    job = job_from_wire(encode(replace(GOOD, lease_expires_at=(301_795_972_459, 0))))
    assert isinstance(job, types.Job)
    assert job.lease_expires_at == datetime.max.replace(tzinfo=UTC)


def test_a_job_is_read_in_full() -> None:
    job = job_from_wire(encode(GOOD), worker_id="w", deadline_of=datetime.timestamp)
    assert job == types.Job(
        id="the-id",
        queue="emails",
        job_type="welcome",
        payload=types.Payload(b"{}", "json"),
        priority=9,
        attempt=2,
        max_attempts=3,
        enqueued_at=datetime.fromtimestamp(1_764_430_000.123, UTC),
        lease_expires_at=datetime.fromtimestamp(1_764_430_030, UTC),
        scheduled_at=datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC),
        custom={"tenant": ""},
        trace_context=types.TraceContext(TRACEPARENT, "a=b"),
    )
    assert isinstance(job, types.Job)
    assert job.worker_id == "w"
    assert job.lease_deadline == 1_764_430_030


def test_a_bare_job_is_read() -> None:
    bare = replace(GOOD, payload=None, trace_context=None, custom=b"", scheduled_at=None)
    job = job_from_wire(encode(bare))
    assert isinstance(job, types.Job)
    assert (job.payload, job.trace_context, dict(job.custom)) == (None, None, {})
    assert (job.scheduled_at, job.lease_deadline, job.worker_id) == (None, None, None)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"id": ""}, "id is empty"),
        ({"job_type": ""}, "job_type is empty"),
        ({"priority": 12}, "priority is 12, beyond 9"),
        ({"attempt": 0}, "attempt is 0"),
        ({"enqueued_at": None}, "enqueued_at is not set"),
        ({"enqueued_at": (-1, 0)}, "enqueued_at is before 1970"),
        ({"enqueued_at": (0, -1)}, "enqueued_at is before 1970"),
        ({"lease_expires_at": None}, "lease_expires_at is not set"),
        ({"lease_expires_at": (-1, 0)}, "lease_expires_at is before 1970"),
        ({"custom": encode_custom({"k": records.PrimitiveValue()})}, r"custom\['k'\] has no value"),
        ({"custom": b"\x52\x02\x0a\x05"}, "Job.custom.entry.key: ends in the middle"),
        ({"payload": records.Payload(b"", "json")}, "payload.data must not be empty"),
        ({"payload": records.Payload(b"x", "")}, "payload.encoding must not be empty"),
    ],
)
def test_a_bad_part_makes_a_malformed_job_that_can_be_named(
    changes: dict[str, Any], reason: str
) -> None:
    bad = job_from_wire(encode(replace(GOOD, **changes)))
    assert isinstance(bad, MalformedJob)
    assert (bad.job_id, bad.attempt, bad.queue) == (
        changes.get("id", "the-id"),
        changes.get("attempt", 2),
        "emails",
    )
    assert reason.replace("\\", "") in bad.reason
    assert bad.can_be_nacked is ("id" not in changes and "attempt" not in changes)


@pytest.mark.parametrize(
    "damage",
    [
        b"\x12\x02\xc3\x28",  # a job type that is no UTF-8
        b"\x1a\x02\x0a\x7f",  # a payload that ends in the middle
        b"\x1a",  # the message itself does
        b"\x00",
        b"\xff\xff",
    ],
)
def test_the_lease_of_a_job_that_does_not_decode_is_read_all_the_same(damage: bytes) -> None:
    bad = job_from_wire(encode(GOOD) + damage)
    assert isinstance(bad, MalformedJob)
    assert (bad.job_id, bad.attempt, bad.queue) == ("the-id", 2, "emails")
    assert bad.can_be_nacked


@pytest.mark.parametrize("raw", [b"", b"\x1a", b"\xff\xff", b"\x0a\x7fx", b"\x0a\x02\xc3\x28"])
def test_bytes_without_a_lease_are_a_malformed_job_without_one(raw: bytes) -> None:
    bad = job_from_wire(raw)
    assert isinstance(bad, MalformedJob)
    assert not bad.can_be_nacked
    assert bad.reason


@given(st.binary(max_size=60) | st.integers(0, 150).map(lambda n: encode(GOOD)[:n]))
def test_no_bytes_raise(raw: bytes) -> None:
    assert isinstance(job_from_wire(raw), (types.Job, MalformedJob))
    assert isinstance(dead_letter_from_wire(raw), (types.DeadLetterRecord, types.RawDeadLetter))


@pytest.mark.parametrize(
    "changes",
    [
        {"trace_context": b"\x0a\x05"},
        {"trace_context": encode_trace_context(records.TraceContext("nonsense"))},
        {"trace_context": b""},
    ],
)
def test_a_bad_trace_context_does_not_cost_the_job(changes: dict[str, Any]) -> None:
    job = job_from_wire(encode(replace(GOOD, **changes)))
    assert isinstance(job, types.Job)
    assert job.trace_context is None


def test_a_schedule_that_no_datetime_holds_does_not_cost_the_job() -> None:
    job = job_from_wire(encode(replace(GOOD, scheduled_at=(253402300800, 0))))
    assert isinstance(job, types.Job)
    assert job.scheduled_at is None


def test_unknown_fields_in_a_job_are_ignored() -> None:
    newer = b"\xba\x06\x02hi"
    assert job_from_wire(newer + encode(GOOD) + newer) == job_from_wire(encode(GOOD))


CUSTOM = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    st.text(st.characters(exclude_categories=["Cs"]))
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.booleans(),
    max_size=20,
)


@given(CUSTOM)
def test_custom_values_keep_their_kind(custom: dict[str, types.Primitive]) -> None:
    back = custom_from_wire({key: record_of_value(value) for key, value in custom.items()})
    assert {k: (type(v), repr(v)) for k, v in back.items()} == {
        k: (type(v), repr(v)) for k, v in custom.items()
    }


# ---- Dead letters ----

LETTER = records.DeadLetterRecord(
    job=GOOD, cause=3, failed_at=(1_764_430_100, 0), final_attempt=3, last_reason=""
)


def test_a_dead_letter_is_read_in_full() -> None:
    letter = dead_letter_from_wire(encode(LETTER))
    assert isinstance(letter, types.DeadLetterRecord)
    job = job_from_wire(encode(GOOD))
    for name in ("queue", "job_type", "payload", "priority", "max_attempts", "enqueued_at"):
        assert getattr(letter, name) == getattr(job, name)
    for name in ("scheduled_at", "custom", "trace_context"):
        assert getattr(letter, name) == getattr(job, name)
    assert (letter.job_id, letter.final_attempt, letter.last_reason) == ("the-id", 3, "")
    assert letter.cause is types.DeadLetterCause.LEASE_EXPIRED
    assert letter.failed_at == datetime.fromtimestamp(1_764_430_100, UTC)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"job": None}, "job is not set"),
        ({"job": replace(GOOD, job_type="")}, "job_type is empty"),
        ({"failed_at": None}, "failed_at is not set"),
    ],
)
def test_a_dead_letter_that_cannot_be_read_is_kept_as_it_came(
    changes: dict[str, Any], reason: str
) -> None:
    raw = encode(replace(LETTER, **changes))
    assert dead_letter_from_wire(raw) == types.RawDeadLetter(raw, reason)


def test_a_bare_dead_letter_is_read() -> None:
    bare = replace(GOOD, payload=None, trace_context=None, custom=b"", scheduled_at=None)
    letter = dead_letter_from_wire(encode(replace(LETTER, job=bare, last_reason=None)))
    assert isinstance(letter, types.DeadLetterRecord)
    assert (letter.scheduled_at, letter.trace_context, dict(letter.custom)) == (None, None, {})
    assert (letter.payload, letter.last_reason) == (None, None)


def test_undecodable_bytes_of_a_dead_letter_are_kept() -> None:
    letter = dead_letter_from_wire(b"\x0a\x7f")
    assert isinstance(letter, types.RawDeadLetter)
    assert letter.data == b"\x0a\x7f"


def test_causes_both_ways_and_an_unknown_one() -> None:
    for cause in types.DeadLetterCause:
        assert cause_from_wire(cause_to_wire(cause)) is cause
    for number in (99, -1):
        assert cause_from_wire(number) is types.DeadLetterCause.UNSPECIFIED
    letter = dead_letter_from_wire(encode(replace(LETTER, cause=99)))
    assert isinstance(letter, types.DeadLetterRecord)
    assert "UNSPECIFIED" in repr(letter)
