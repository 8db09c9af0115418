"""Batches of jobs: the short way to bytes and from bytes is the way through the records."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sepp.v1 import queue_pb2

from sepp_trio import errors, types
from sepp_trio.testing.strategies import enqueue_requests
from sepp_trio.types import EnqueueAck, EnqueueRequest, Payload
from sepp_trio.wire import DecodeError, EncodeError, decode, encode, records
from sepp_trio.wire.convert import (
    atomic_acks_from_wire,
    batch_results_from_wire,
    decode_atomic,
    decode_results,
    encode_requests,
)
from sepp_trio.wire.convert._enqueue import _LONGEST, _MOST, _ids, _names
from tests.wire.request_records import record_of

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UUID = "0199f3c2-7a1e-7b3c-9d4e-0123456789ab"
FULL = records.JobRejection(queue_full=records.QueueFull("q", 5))


def through_records(requests: list[EnqueueRequest]) -> bytes:
    return encode(records.EnqueueBatchRequest([*map(record_of, requests)]))


def judge(requests: list[EnqueueRequest]) -> list[Any]:
    """What google.protobuf reads in them."""
    return list(queue_pb2.EnqueueBatchRequest.FromString(encode_requests(requests)).jobs)


# ---- Requests ----


def test_a_minimal_request_sends_nothing_else() -> None:
    [judged] = judge([EnqueueRequest("q", "t")])
    assert judged == queue_pb2.EnqueueRequest(queue="q", job_type="t")


def test_every_part_of_a_request_is_sent() -> None:
    request = EnqueueRequest(
        "q",
        "t",
        Payload(b"x", "e"),
        idempotency_key="k",
        priority=types.Priority.P7,
        max_attempts=4,
        custom={"s": "", "i": -1, "f": 0.0, "b": True},
        trace_context=types.TraceContext(TRACEPARENT, ""),
        scheduled_at=datetime(2026, 6, 1, 9, tzinfo=timezone(timedelta(hours=9))),
    )
    [judged] = judge([request])
    assert (judged.queue, judged.job_type) == ("q", "t")
    assert (judged.payload.data, judged.payload.encoding) == (b"x", "e")
    assert (judged.idempotency_key, judged.priority, judged.max_attempts) == ("k", 7, 4)
    kinds = {key: value.WhichOneof("value") for key, value in judged.custom.items()}
    assert kinds == {"s": "string_value", "i": "int_value", "f": "double_value", "b": "bool_value"}
    assert judged.trace_context.traceparent == TRACEPARENT
    assert judged.trace_context.HasField("tracestate")
    assert judged.scheduled_at.ToDatetime(tzinfo=UTC) == datetime(2026, 6, 1, tzinfo=UTC)


@given(st.lists(enqueue_requests(), max_size=4))
def test_requests_are_written_as_their_records_are(requests: list[EnqueueRequest]) -> None:
    assert encode_requests(requests) == through_records(requests)


alike = st.builds(
    EnqueueRequest,
    queue=st.sampled_from(["a", "b"]),
    job_type=st.sampled_from(["a", "bb"]),
    payload=st.none()
    | st.builds(Payload, st.sampled_from([b"1", b"2", b"22"]), st.sampled_from(["e", "f", "gg"])),
    idempotency_key=st.sampled_from([None, "k", "l", "kk"]),
    max_attempts=st.sampled_from([None, None, 1, 300]),
)


@given(st.lists(alike, max_size=8))
def test_nothing_of_the_job_before_is_left(requests: list[EnqueueRequest]) -> None:
    assert encode_requests(requests) == through_records(requests)


@pytest.mark.parametrize("size", [1, 60, 100, 120, 127, 128, 129, 16_000, 16_383, 16_384, 2**21])
@pytest.mark.parametrize(
    "more", [{}, {"idempotency_key": "k" * 130}, {"priority": 3, "max_attempts": 300}]
)
def test_lengths_of_every_width_are_written(size: int, more: dict[str, Any]) -> None:
    requests = [
        EnqueueRequest("q" * (200 if size > 100 else 1), "t", payload, **more)
        for payload in (Payload(b"x" * size, "e"), Payload(b"x", "e" * min(size, 300)), None)
    ]
    assert encode_requests(requests) == through_records(requests)


def test_custom_values_of_every_kind_and_width_are_written() -> None:
    class Level(IntEnum):
        HIGH = 300

    numbers = [0, 1, -1, 127, 128, 2**31, -(2**31), 2**63 - 1, -(2**63), True, False, Level.HIGH]
    floats = [0.0, -0.0, 1.5, float("inf"), float("nan"), 5e-324]
    texts = ["", "x", "é" * 70, "x" * 20_000]
    custom = {f"key {index}": value for index, value in enumerate([*numbers, *floats, *texts])}
    requests = [EnqueueRequest("q", "t", custom={**custom, "k" * 200: "v", "é" * 100: 1})]
    assert encode_requests(requests) == through_records(requests)


@pytest.mark.parametrize(
    ("key", "value"), [("k", object()), ("k", 2**63), ("k", "\udc00"), ("\udc00", 1), (5, "v")]
)
def test_a_custom_map_that_was_spoilt_after_its_check_is_refused(key: Any, value: Any) -> None:
    request = EnqueueRequest("q", "t", custom={"good": 1})
    request.custom[key] = value  # type: ignore[index]
    with pytest.raises(EncodeError, match=r"EnqueueRequest\.custom\[.*PrimitiveValue: "):
        encode_requests([request])


def test_no_more_names_are_remembered_than_is_good() -> None:
    long = [EnqueueRequest("q", "t" * (_LONGEST + index)) for index in range(3)]
    assert encode_requests(long) == through_records(long)
    assert not any(job_type.startswith("tt") and len(job_type) > _LONGEST for _, job_type in _names)
    many = [EnqueueRequest("q", f"type-{index}") for index in range(_MOST + 10)]
    assert encode_requests(many) == through_records(many)
    assert len(_names) <= _MOST


# ---- Answers ----


def results_of(*ids: str) -> bytes:
    successes = [records.JobResult(success=records.EnqueueResponse(job_id)) for job_id in ids]
    return encode(records.EnqueueBatchResponse(successes))


def acks_of(*ids: str) -> bytes:
    responses = [records.EnqueueResponse(job_id) for job_id in ids]
    return encode(records.EnqueueAtomicResponse(success=records.EnqueueAtomicSuccess(responses)))


def outcome(read: Callable[[bytes], Any], data: bytes) -> object:
    """What comes of it, comparable."""
    try:
        value = read(data)
    except (DecodeError, errors.MalformedResponseError) as error:
        return type(error), str(error)
    return value.errors if isinstance(value, errors.BatchValidationError) else value


def assert_read_alike(data: bytes) -> None:
    """As results and as an atomic answer, whatever it is."""
    assert outcome(decode_results, data) == outcome(
        lambda data: batch_results_from_wire(decode(records.EnqueueBatchResponse, data)), data
    )
    assert outcome(decode_atomic, data) == outcome(
        lambda data: atomic_acks_from_wire(decode(records.EnqueueAtomicResponse, data)), data
    )


@pytest.mark.parametrize("number", [1, 2, 3, 100, 500])
def test_ids_of_one_length_are_read_the_short_way(number: int) -> None:
    ids = [f"{index:05}{UUID}"[-36:] for index in range(number)]
    acks = [EnqueueAck(job_id, False) for job_id in ids]
    assert _ids(results_of(*ids), 3) == ids
    assert decode_results(results_of(*ids)) == decode_atomic(acks_of(*ids)) == acks
    assert_read_alike(results_of(*ids))
    assert_read_alike(acks_of(*ids))


ODD = {
    "nothing": [],
    "other lengths": ["a", "bb"],
    "one empty": ["", "a"],
    "not ASCII": ["é", "a"],
    "the head of another inside": ["\n\x08\n\x06\n\x04aaaa"[:4], "\n\x08\n\x06"],
    "long": ["a" * 120, "b" * 120],
    "very long": ["a" * 200, "b" * 20_000],
}


@pytest.mark.parametrize("ids", ODD.values(), ids=ODD)
def test_other_ids_are_read_through_the_records(ids: list[str]) -> None:
    acks = [EnqueueAck(job_id, False) for job_id in ids]
    assert decode_results(results_of(*ids)) == acks
    assert_read_alike(results_of(*ids))
    assert_read_alike(acks_of(*ids))


success = st.builds(
    records.EnqueueResponse,
    job_id=st.sampled_from([UUID, "a", "b", "\n\x05\n\x03\n\x01c", ""]),
    deduplicated=st.sampled_from([False, False, False, True]),
)
result = st.builds(records.JobResult, success=success) | st.builds(
    records.JobResult, rejection=st.sampled_from([FULL, records.JobRejection()])
)
answer = st.builds(records.EnqueueBatchResponse, results=st.lists(result, max_size=4))
all_stored = st.builds(
    records.EnqueueAtomicResponse,
    success=st.builds(records.EnqueueAtomicSuccess, responses=st.lists(success, max_size=4)),
)


@given(answer | all_stored, st.data())
def test_any_answer_is_read_as_its_record_is(record: Any, data: st.DataObject) -> None:
    message = encode(record)
    assert_read_alike(message)
    if message:
        broken = bytearray(message)
        broken[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
        assert_read_alike(bytes(broken))
        assert_read_alike(message[: data.draw(st.integers(0, len(message)))])
        assert_read_alike(message + message[: data.draw(st.integers(0, len(message)))])


def test_a_refused_atomic_batch_is_given_not_raised() -> None:
    failure = records.BatchValidationFailure([records.JobValidationError(3, FULL)])
    refusal = decode_atomic(encode(records.EnqueueAtomicResponse(rejection=failure)))
    assert isinstance(refusal, errors.BatchValidationError)
    assert refusal.errors == (types.JobValidationError(3, types.QueueFull("q", 5)),)
