"""Requests to the wire; answers, rejections and server info from it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from sepp.v1 import queue_pb2

from sepp_trio import errors, types
from sepp_trio.wire import encode, records
from sepp_trio.wire._codegen._tables import message_table
from sepp_trio.wire.convert import (
    atomic_acks_from_wire,
    batch_results_from_wire,
    counted,
    lease_expiry_from_wire,
    nack_request_to_wire,
    rejection_from_wire,
    rejection_to_wire,
    retry_to_wire,
    server_info_from_wire,
)

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


# ---- Requests ----


@pytest.mark.parametrize(
    ("directive", "wire"),
    [
        (types.RetryDirective.DEFAULT, records.NackRetry(default=())),
        (types.RetryDirective.DEAD_LETTER, records.NackRetry(dead_letter=())),
        (types.RetryDirective.after(1.5), records.NackRetry(delay=(1, 500_000_000))),
    ],
)
def test_a_directive_sets_one_strategy(
    directive: types.RetryDirective, wire: records.NackRetry
) -> None:
    assert retry_to_wire(directive) == wire
    request = nack_request_to_wire("id", 2, directive, "why", "w")
    assert request == records.NackRequest("id", 2, "why", wire, "w")


def test_a_reason_is_sent_whatever_it_holds() -> None:
    def sent(reason: str) -> str | None:
        request = nack_request_to_wire("id", 1, types.RetryDirective.DEFAULT, reason)
        judged = queue_pb2.NackRequest.FromString(encode(request))
        return judged.reason if judged.HasField("reason") else None

    assert sent("") is None
    assert sent("bad name: \udcff") == r"bad name: \udcff"
    assert sent("\n\r\0 \N{PILE OF POO}") == "\n\r\0 \N{PILE OF POO}"


# ---- Answers to enqueue ----

ACK = records.JobResult(success=records.EnqueueResponse("id", True))
FULL = records.JobRejection(queue_full=records.QueueFull("q", 5))


def test_results_come_in_order() -> None:
    response = records.EnqueueBatchResponse([ACK, records.JobResult(rejection=FULL)])
    assert batch_results_from_wire(response) == [
        types.EnqueueAck("id", True),
        types.QueueFull("q", 5),
    ]


def test_another_number_of_results_is_an_error() -> None:
    ack = types.EnqueueAck("id", False)
    for results in ([], [ack], [ack] * 3):
        with pytest.raises(errors.BatchResultCountMismatchError) as caught:
            counted(results, 2)
        assert (caught.value.expected, caught.value.got) == (2, len(results))
    assert counted([ack, ack], 2) == [ack, ack]


def test_an_answer_without_an_outcome_is_malformed() -> None:
    with pytest.raises(errors.MalformedResponseError, match="result 1 has no outcome"):
        batch_results_from_wire(records.EnqueueBatchResponse([ACK, records.JobResult()]))
    with pytest.raises(errors.MalformedResponseError, match="no outcome"):
        atomic_acks_from_wire(records.EnqueueAtomicResponse())


def test_an_atomic_batch_is_all_or_nothing() -> None:
    success = records.EnqueueAtomicSuccess([records.EnqueueResponse("id")])
    acks = atomic_acks_from_wire(records.EnqueueAtomicResponse(success=success))
    assert acks == [types.EnqueueAck("id", False)]

    failure = records.BatchValidationFailure(
        [records.JobValidationError(0, FULL), records.JobValidationError(3, None)]
    )
    refusal = atomic_acks_from_wire(records.EnqueueAtomicResponse(rejection=failure))
    assert isinstance(refusal, errors.BatchValidationError)
    assert refusal.errors == (
        types.JobValidationError(0, types.QueueFull("q", 5)),
        types.JobValidationError(3, types.UnknownRejection()),
    )


# ---- Rejections ----

REJECTIONS: list[types.JobRejection] = [
    types.UnknownQueue("q"),
    types.PayloadTooLarge(1, 2**63),
    types.EncodingNotAllowed("e", ("a", "b")),
    types.JobTypeNotAllowed("t", ()),
    types.CustomEntriesTooMany(64, 65),
    types.CustomMapTooLarge(1, 2),
    types.CustomKeyTooLong("k", 1, 2),
    types.QueueNameTooLong(1, 2),
    types.JobTypeNameTooLong(1, 2),
    types.IdempotencyKeyTooLong(1, 2),
    types.ScheduledTooFar(2592000.0, datetime(2030, 1, 1, tzinfo=UTC)),
    types.ScheduledTooFar(0.5, None),
    types.InvalidRequest("priority"),
    types.QueueFull("q", 5),
    types.QueueClosing("q"),
    types.UnknownRejection(),
]


@pytest.mark.parametrize("rejection", REJECTIONS)
def test_a_rejection_survives_both_ways(rejection: types.JobRejection) -> None:
    wire = rejection_to_wire(rejection)
    judged = queue_pb2.JobRejection.FromString(encode(wire))
    reason = judged.WhichOneof("reason")
    if isinstance(rejection, types.UnknownRejection):
        assert reason is None
    else:
        assert reason is not None
        assert getattr(judged, reason).DESCRIPTOR.name == type(rejection).__name__
    assert rejection_from_wire(wire) == rejection
    assert str(rejection)


def test_every_reason_of_the_contract_is_known() -> None:
    reasons = {field.message for field in message_table("JobRejection").fields}
    assert reasons == {type(rejection).__name__ for rejection in REJECTIONS} - {"UnknownRejection"}


def test_a_schedule_that_no_datetime_holds_is_still_a_rejection() -> None:
    too_far = records.ScheduledTooFar((60, 0), (2**62, 0))
    wire = records.JobRejection(scheduled_too_far=too_far)
    assert rejection_from_wire(wire) == types.ScheduledTooFar(60.0, None)


def test_a_rejection_that_is_not_there_is_unknown() -> None:
    assert rejection_from_wire(None) == types.UnknownRejection()


# ---- Extend and server info ----


def test_the_new_end_of_a_lease_is_read_or_malformed() -> None:
    response = records.ExtendResponse("id", (1_764_430_000, 5_000_000))
    assert lease_expiry_from_wire(response) == datetime.fromtimestamp(1_764_430_000.005, UTC)
    beyond = records.ExtendResponse("id", (253402300800, 0))
    assert lease_expiry_from_wire(beyond) == datetime.max.replace(tzinfo=UTC)
    for bad in (None, (-1, 0)):
        with pytest.raises(errors.MalformedResponseError, match="lease_expires_at"):
            lease_expiry_from_wire(records.ExtendResponse("id", bad))


INFO = records.GetServerInfoResponse(
    server_version="0.1.1",
    supported_protocol_versions=["v1"],
    server_time=(1_764_430_000, 0),
    restricts_encodings=True,
    allowed_encodings=["json"],
    max_payload_bytes=1,
    max_custom_entries=2,
    max_custom_total_bytes=3,
    max_custom_key_bytes=4,
    max_queue_name_bytes=5,
    max_job_type_bytes=6,
    max_idempotency_key_bytes=7,
    max_schedule_horizon=(2592000, 0),
    max_enqueue_batch=8,
    max_reserve_batch=9,
    max_reserve_queues=10,
    max_wait_timeout=(300, 0),
    max_lease_duration=(0, 600_000_000),
    strict_queues=True,
    dead_letter_retention_enabled=True,
)


def test_server_info_is_read_in_full() -> None:
    info = server_info_from_wire(INFO)
    for name in INFO.__match_args__:
        wire, value = getattr(INFO, name), getattr(info, name)
        if isinstance(wire, list):
            assert value == tuple(wire), name
        elif not isinstance(wire, tuple):
            assert value == wire, name
    assert info.server_time == datetime.fromtimestamp(1_764_430_000, UTC)
    assert info.max_schedule_horizon == 2592000.0
    assert info.max_wait_timeout == 300.0
    assert info.max_lease_duration == 0.6


def test_server_info_without_version_or_time_is_malformed() -> None:
    with pytest.raises(errors.MalformedServerInfoError, match="server_version"):
        server_info_from_wire(records.GetServerInfoResponse(server_time=(1, 0)))
    for bad in (None, (-1, 0), (2**62, 0)):
        with pytest.raises(errors.MalformedServerInfoError, match="server_time"):
            server_info_from_wire(records.GetServerInfoResponse("0.1.1", server_time=bad))
