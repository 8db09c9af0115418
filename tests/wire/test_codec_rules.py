"""The codec's rules one by one, on bytes that show them."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import pytest
from google.protobuf.message import DecodeError as JudgeError
from sepp.v1 import queue_pb2

from sepp_trio.wire import (
    DecodeError,
    EncodeError,
    Record,
    SeppCodec,
    custom_of,
    decode,
    decoder_of,
    encode,
    encode_custom,
    encode_trace_context,
    records,
    trace_context_of,
)
from sepp_trio.wire._codegen._compile import LEAST_SLICE, LONGEST_SHARED, MOST_SHARED
from sepp_trio.wire._primitives import MAX_GROUPS, Slice
from sepp_trio.wire._record import record as declared
from sepp_trio.wire.generated import codecs
from sepp_trio.wire.generated.google import protobuf as google
from sepp_trio.wire.generated.sepp import v1 as messages

# Tags of AckRequest: job_id, attempt; of an unknown field 15: varint, group, its end.
ID, ATTEMPT, UNKNOWN, GROUP, END = b"\x0a", b"\x10", b"\x78", b"\x7b", b"\x7c"


def ack(raw: bytes) -> records.AckRequest:
    return decode(records.AckRequest, raw)


# ---- Accepted, and what it means (the judge agrees) ----


@pytest.mark.parametrize(
    ("raw", "job_id", "attempt"),
    [
        (b"", "", 0),
        (ATTEMPT + b"\x07" + ID + b"\x01a", "a", 7),
        (ID + b"\x01a" + ID + b"\x01b", "b", 0),
        (b"\x8a\x80\x80\x80\x00\x01a", "a", 0),  # a tag of five bytes
        (ID + b"\x81\x80\x80\x80\x00a", "a", 0),  # so is a length
        (ATTEMPT + b"\x81\x80\x80\x80\x10", "", 1),  # 2**32 + 1, cut to 32 bits
        (ATTEMPT + b"\xff" * 9 + b"\x01", "", 2**32 - 1),  # -1
        (GROUP + ID + b"\x01a" + b"\x08\x01" + END, "", 0),  # known numbers inside a group
        (GROUP + UNKNOWN + b"\x01" + GROUP + END + END + ATTEMPT + b"\x01", "", 1),
        (GROUP + b"\x82\x01\x01a" + END + ATTEMPT + b"\x01", "", 1),
        (b"\x79" + b"\x00" * 8 + b"\x7d" + b"\x00" * 4 + ATTEMPT + b"\x01", "", 1),
        (b"\x7a\x81\x00a" + UNKNOWN + b"\x80\x01" + ATTEMPT + b"\x01", "", 1),
        (b"\xf8\xff\xff\xff\x0f\x01" + ATTEMPT + b"\x01", "", 1),  # the largest number
    ],
)
def test_is_read_as_protobuf_reads_it(raw: bytes, job_id: str, attempt: int) -> None:
    judged = queue_pb2.AckRequest.FromString(raw)
    assert (judged.job_id, judged.attempt) == (job_id, attempt)
    assert ack(raw) == records.AckRequest(job_id, attempt)


# ---- Refused, by the judge as well ----


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (ID + b"\x7fx", r"AckRequest\.job_id: ends in the middle"),
        (ID, r"AckRequest\.job_id: ends in the middle"),
        (ATTEMPT, r"AckRequest\.attempt: ends in the middle"),
        (ATTEMPT + b"\xff", r"AckRequest\.attempt: ends in the middle"),
        (b"\xff\xff", "AckRequest: ends in the middle"),
        (b"\x7d\x00", "AckRequest: ends in the middle"),
        (GROUP + UNKNOWN, "AckRequest: ends in the middle"),
        (ATTEMPT + b"\xff" * 10 + b"\x01", r"attempt: a number of more than 64 bits"),
        (b"\x8a\x80\x80\x80\x10\x01a", "more than 32 bits"),
        (ID + b"\x81\x80\x80\x80\x10a", "job_id: a tag or length of more than 32 bits"),
        (b"\x00\x01", "number 0"),
        (b"\x80\x00\x01", "number 0"),
        (b"\x7e\x00", "wire type 6"),
        (b"\x7f\x00", "wire type 7"),
        (END, "wire type 4"),
        (GROUP + b"\x74", "the end of a group that is not open"),
        (ID + b"\x02\xc3\x28", r"AckRequest\.job_id: not UTF-8 \(invalid continuation byte\)"),
        (ID + b"\x03\xed\xa0\x80", r"job_id: not UTF-8"),  # a surrogate
    ],
)
def test_is_refused_and_the_field_is_named(raw: bytes, error: str) -> None:
    with pytest.raises(JudgeError):
        queue_pb2.AckRequest.FromString(raw)
    with pytest.raises(DecodeError, match=error):
        ack(raw)


def test_a_number_does_not_reach_beyond_the_message_it_is_in() -> None:
    # The success of a JobResult, two bytes long, whose last number goes on outside.
    raw = b"\x0a\x02\x10\x80\x01"
    with pytest.raises(JudgeError):
        queue_pb2.JobResult.FromString(raw)
    with pytest.raises(DecodeError, match=r"EnqueueResponse\.deduplicated: ends in the middle"):
        decode(records.JobResult, raw)


# ---- Where the real server judges otherwise (test_codec_and_server.py shows that it does) ----


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"\x08\x05", r"AckRequest\.job_id: a field of wire type 0"),
        (b"\x12\x01a", r"AckRequest\.attempt: a field of wire type 2"),
        (b"\x92\x00\x01a", r"AckRequest\.attempt: a field of wire type 2"),
        (b"\x0b\x0c", r"AckRequest\.job_id: a field of wire type 3"),
        (ATTEMPT + b"\xff" * 9 + b"\x02", r"AckRequest\.attempt: a number of more than 64 bits"),
        (UNKNOWN + b"\xff" * 9 + b"\x7f", "AckRequest: a number of more than 64 bits"),
        (GROUP + b"\x00\x01" + END, "number 0"),
        (GROUP + b"\x03\x04" + END, "number 0"),
    ],
)
def test_is_refused_though_protobuf_reads_it(raw: bytes, error: str) -> None:
    queue_pb2.AckRequest.FromString(raw)
    with pytest.raises(DecodeError, match=error):
        ack(raw)


@pytest.mark.parametrize("raw", [b"\x00\x01", b"\x03\x04"])
def test_field_number_0_is_refused_in_a_message_without_fields(raw: bytes) -> None:
    queue_pb2.GetServerInfoRequest.FromString(raw)
    with pytest.raises(DecodeError, match="number 0"):
        decode(records.GetServerInfoRequest, raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x8a\x80\x80\x80\x80\x00\x01a",  # a tag of six bytes
        b"\x8a" + b"\x80" * 8 + b"\x00\x01a",  # of ten
        ID + b"\x81\x80\x80\x80\x80\x00a",  # a length of six
        b"\x7a\x81" + b"\x80" * 8 + b"\x00a" + ID + b"\x01a",  # of ten, in an unknown field
    ],
)
def test_tags_and_lengths_may_be_longer_than_protobuf_reads(raw: bytes) -> None:
    with pytest.raises(JudgeError):
        queue_pb2.AckRequest.FromString(raw)
    assert ack(raw) == records.AckRequest("a")


def test_unknown_fields_of_a_map_entry_are_ignored() -> None:
    # custom of an EnqueueRequest; 3 is no field of its entries.
    raw = b"\x42\x09\x18\x05\x0a\x01k\x12\x02\x18\x01"
    assert len(queue_pb2.EnqueueRequest.FromString(raw).custom) == 0
    read = decode(records.EnqueueRequest, raw)
    assert read.custom == {"k": records.PrimitiveValue(int_value=1)}


def test_the_parts_of_a_map_entry_have_their_wire_types() -> None:
    with pytest.raises(DecodeError, match=r"EnqueueRequest\.custom\.entry\.key: .* wire type 0"):
        decode(records.EnqueueRequest, b"\x42\x02\x08\x05")


# ---- A limit of our own ----


def test_deeply_nested_groups_are_refused() -> None:
    depth = MAX_GROUPS
    assert ack(GROUP * depth + END * depth) == records.AckRequest()
    with pytest.raises(DecodeError, match="groups nested"):
        ack(GROUP * (depth + 1) + END * (depth + 1))


# ---- Oneofs, maps, merging (trials 21, 22) ----

RETRIES = [
    (records.NackRetry(default=()), b"\x0a\x00"),
    (records.NackRetry(dead_letter=()), b"\x1a\x00"),
    (records.NackRetry(delay=(0, 0)), b"\x12\x00"),
]
PRIMITIVES = [
    records.PrimitiveValue(string_value=""),
    records.PrimitiveValue(int_value=0),
    records.PrimitiveValue(bool_value=False),
    records.PrimitiveValue(double_value=0.0),
]


@pytest.mark.parametrize(("retry", "raw"), RETRIES)
def test_a_oneof_keeps_a_member_that_is_empty(retry: records.NackRetry, raw: bytes) -> None:
    assert encode(retry) == raw
    assert decode(records.NackRetry, raw) == retry
    member = next(name for name in retry.__match_args__ if getattr(retry, name) is not None)
    assert queue_pb2.NackRetry.FromString(raw).WhichOneof("strategy") == member


@pytest.mark.parametrize("value", PRIMITIVES)
def test_a_map_keeps_a_value_that_is_a_default(value: records.PrimitiveValue) -> None:
    request = records.EnqueueRequest(custom={"k": value})
    assert decode(records.EnqueueRequest, encode(request)) == request
    member = next(name for name in value.__match_args__ if getattr(value, name) is not None)
    judged = queue_pb2.EnqueueRequest.FromString(encode(request))
    assert judged.custom["k"].WhichOneof("value") == member


def test_the_last_member_of_a_oneof_wins() -> None:
    success, rejection = b"\x0a\x03\x0a\x01a", b"\x12\x00"
    read = decode(records.JobResult, success + rejection)
    assert read == records.JobResult(rejection=records.JobRejection())
    # Set again, the first starts afresh.
    read = decode(records.JobResult, success + rejection + b"\x0a\x02\x10\x01")
    assert read == records.JobResult(success=records.EnqueueResponse("", True))


def test_a_message_that_comes_in_parts_is_merged() -> None:
    read = decode(records.JobResult, b"\x0a\x03\x0a\x01a\x0a\x02\x10\x01")
    assert read == records.JobResult(success=records.EnqueueResponse("a", True))


def test_missing_parts_of_a_map_entry_are_defaults_and_the_last_of_a_key_wins() -> None:
    unset = records.PrimitiveValue()
    assert decode(records.EnqueueRequest, b"\x42\x00").custom == {"": unset}
    five, six = b"\x42\x07\x0a\x01k\x12\x02\x18\x05", b"\x42\x07\x0a\x01k\x12\x02\x18\x06"
    read = decode(records.EnqueueRequest, five + six)
    assert read.custom == {"k": records.PrimitiveValue(int_value=6)}


def test_unknown_numbers_and_fields_of_a_newer_server_are_kept_or_skipped() -> None:
    judged = queue_pb2.DeadLetterRecord(cause=99, final_attempt=2)  # type: ignore[arg-type]
    assert decode(records.DeadLetterRecord, judged.SerializeToString()).cause == 99
    newer = b"\xba\x06\x02hi"  # field 103
    assert decode(records.JobRejection, newer) == records.JobRejection()
    job = records.Job(id="a", queue="q")
    assert decode(records.Job, newer + encode(job) + newer) == job


# ---- Raw parts ----


def test_a_raw_part_is_read_when_asked_for() -> None:
    custom = {
        "a": records.PrimitiveValue(int_value=1),
        "b": records.PrimitiveValue(bool_value=True),
    }
    context = records.TraceContext("trace", "")
    job = records.Job(
        id="i", custom=encode_custom(custom), trace_context=encode_trace_context(context)
    )
    read = decode(records.Job, encode(job))
    assert read == job
    assert custom_of(read) == custom
    assert trace_context_of(read) == context
    assert custom_of(records.Job()) == {}
    assert trace_context_of(records.Job()) is None
    assert encode_custom({}) == b""
    assert encode_trace_context(None) is None


def test_a_bad_raw_part_costs_only_itself() -> None:
    job = records.Job(id="i", custom=b"\x52\x02\x0a\x05", trace_context=b"\x0a\x05")
    read = decode(records.Job, encode(job))
    assert read == job
    with pytest.raises(DecodeError, match=r"Job\.custom\.entry\.key: ends in the middle"):
        custom_of(read)
    with pytest.raises(DecodeError, match=r"TraceContext\.traceparent: ends in the middle"):
        trace_context_of(read)


def test_a_raw_part_that_comes_twice_is_merged() -> None:
    parent = records.Job(trace_context=encode_trace_context(records.TraceContext("p")))
    state = records.Job(trace_context=encode_trace_context(records.TraceContext("", "s")))
    read = decode(records.Job, encode(parent) + encode(state))
    assert trace_context_of(read) == records.TraceContext("p", "s")


@pytest.mark.parametrize("size", [4000, 4096, 70_000])
def test_the_jobs_of_an_answer_are_read_in_place(size: int) -> None:
    jobs = [
        records.Job(id=name, payload=records.Payload(bytes(size), name), queue="q", attempt=1)
        for name in ("a", "b")
    ]
    whole = records.ReserveResponse([encode(job) for job in jobs])
    read = decode(records.ReserveResponse, encode(whole))
    large = size >= LEAST_SLICE
    assert [type(raw) for raw in read.jobs] == [Slice if large else bytes] * 2
    # They are as good as bytes: to decoders, encoders, and who compares or copies them.
    assert [decode(records.Job, raw) for raw in read.jobs] == jobs
    assert read == whole
    assert encode(read) == encode(whole)
    assert [len(raw) for raw in read.jobs] == [len(bytes(raw)) for raw in read.jobs]
    assert read.jobs != [raw.decode("latin-1") for raw in whole.jobs if isinstance(raw, bytes)]
    cut = Slice(encode(jobs[0]) + b"more", 0, len(encode(jobs[0])) - 1)
    with pytest.raises(DecodeError, match=r"Job\.queue"):
        decode(records.Job, cut)
    # Not the short way of a message of one string: it begins where the slice does.
    answer = b"xx" + encode(records.AckResponse("id"))
    assert decode(records.AckResponse, Slice(answer, 2, len(answer))).job_id == "id"


def test_any_buffer_is_read_and_its_parts_are_bytes() -> None:
    raw = encode(records.Payload(b"data", "e"))
    for buffer in (bytearray(raw), memoryview(raw)):
        payload = decoder_of(records.Payload)(buffer)  # type: ignore[arg-type]
        assert payload == records.Payload(b"data", "e")
        assert type(payload.data) is bytes


# ---- What is refused when writing (trials 27, 65) ----


@pytest.mark.parametrize(
    ("record", "error"),
    [
        (records.AckRequest(attempt=-1), r"AckRequest\.attempt: -1 is not between 0 and"),
        (records.AckRequest(attempt=2**32), r"AckRequest\.attempt: 4294967296 is not between"),
        (records.PayloadTooLarge(actual=2**64), r"PayloadTooLarge\.actual: "),
        (records.DeadLetterRecord(cause=2**31), r"DeadLetterRecord\.cause: "),
        (records.PrimitiveValue(int_value=2**63), r"PrimitiveValue\.int_value: "),
        (records.PrimitiveValue(int_value=-(2**63) - 1), r"PrimitiveValue\.int_value: "),
        (records.ExtendRequest(lease_duration=(2**63, 0)), r"Duration\.seconds: "),
        (records.ExtendRequest(lease_duration=(0, 2**31)), r"Duration\.nanos: "),
        (records.AckRequest(job_id="\udcff"), r"AckRequest\.job_id: not Unicode text"),
        (records.NackRequest(reason="\udcff"), r"NackRequest\.reason: not Unicode text"),
        (
            records.EnqueueRequest(custom={"\udcff": PRIMITIVES[0]}),
            r"EnqueueRequest\.custom\.entry\.key: not",
        ),
    ],
)
def test_what_the_message_cannot_hold_is_refused(record: Any, error: str) -> None:
    with pytest.raises(EncodeError, match=error):
        encode(record)


def test_the_largest_values_are_written() -> None:
    for record in (
        records.AckRequest(attempt=2**32 - 1),
        records.PayloadTooLarge(limit=2**64 - 1),
        records.DeadLetterRecord(cause=-(2**31)),
        records.PrimitiveValue(int_value=-(2**63)),
        records.ExtendRequest(lease_duration=(2**63 - 1, -(2**31))),
    ):
        assert decode(type(record), encode(record)) == record


# ---- The codec that channels and servers take ----


def test_the_generated_messages_and_the_records_are_written_alike() -> None:
    codec = SeppCodec()
    record = records.AckRequest("a", 1, "w")
    message = messages.AckRequest(job_id="a", attempt=1, worker_id="w")
    raw = codec.encode(message, messages.AckRequest)
    assert raw == codec.encode(record, messages.AckRequest) == encode(record)
    assert codec.decode(raw, messages.AckRequest) == record

    with pytest.raises(EncodeError, match="AckRequest is no AckResponse"):
        codec.encode(record, messages.AckResponse)
    with pytest.raises(EncodeError, match="str is no AckResponse"):
        codec.encode("text", messages.AckResponse)
    with pytest.raises(EncodeError, match="AckRequest: "):
        codec.encode(messages.AckRequest(job_id="\udcff"), messages.AckRequest)
    with pytest.raises(DecodeError, match="Empty has no record"):
        codec.decode(b"", google.Empty)


def test_a_record_that_is_no_message_has_no_codec() -> None:
    @declared
    class Nothing(Record):
        pass

    with pytest.raises(LookupError, match="Nothing: no such message"):
        encode(Nothing())


def test_the_constructor_of_a_record_is_that_of_a_dataclass() -> None:
    @declared
    class Made(Record):
        number: int = 7
        names: list[str] = field(default_factory=list)

    first, second = Made(), Made(8)
    assert (first.number, second.number) == (7, 8)
    first.names.append("x")
    assert second.names == []
    assert Made(names=["x"]) == first
    assert repr(Made(1)) == "Made(number=1, names=[])"
    for wrong in (lambda: Made(1, [], 2), lambda: Made(other=1), lambda: Made(1, number=1)):  # type: ignore[call-arg,misc]
        with pytest.raises(TypeError, match=r"Made\.__init__"):
            wrong()


def test_the_ends_of_jobs_are_remembered_within_bounds() -> None:
    shared = codecs.shared_Job
    shared.clear()
    for attempt in range(3 * MOST_SHARED):
        job = records.Job(id="a", job_type="t", attempt=attempt + 1, queue="q")
        assert decode(records.Job, encode(job)) == job
        assert len(shared) <= MOST_SHARED
    before = len(shared)
    job = records.Job(id="a", job_type="t", attempt=1, queue="q" * LONGEST_SHARED)
    assert decode(records.Job, encode(job)) == job
    assert len(shared) == before
    assert max(map(len, shared)) <= LONGEST_SHARED
