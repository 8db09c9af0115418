"""What a server answers to enqueue, extend and the question who it is; rejections both ways."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sepp_trio import types
from sepp_trio.errors import (
    BatchValidationError,
    MalformedResponseError,
    MalformedServerInfoError,
)
from sepp_trio.types import (
    EnqueueAck,
    JobRejection,
    JobValidationError,
    ScheduledTooFar,
    ServerInfo,
    UnknownRejection,
)

from .. import records
from .._errors import DecodeError
from ._time import (
    datetime_from_wire,
    datetime_to_wire,
    epoch_datetime_from_wire,
    lease_end_from_wire,
    seconds_from_wire,
    seconds_to_wire,
)

# From the class of a reason to the member that holds it.
_REASONS = {
    "".join(map(str.capitalize, member.split("_"))): member
    for member in records.JobRejection.__match_args__
}


def batch_results_from_wire(
    response: records.EnqueueBatchResponse,
) -> list[EnqueueAck | JobRejection]:
    """The result of each job, in order.

    Raises:
        MalformedResponseError: a result is neither success nor rejection.
    """
    return [_result(index, result) for index, result in enumerate(response.results)]


def _result(index: int, result: records.JobResult) -> EnqueueAck | JobRejection:
    if result.success is not None:
        return EnqueueAck(result.success.job_id, result.success.deduplicated)
    if result.rejection is not None:
        return rejection_from_wire(result.rejection)
    raise MalformedResponseError(f"result {index} has no outcome")


def atomic_acks_from_wire(
    response: records.EnqueueAtomicResponse,
) -> list[EnqueueAck] | BatchValidationError:
    """The acks of an atomic batch, in order, or the refusal, which lists every refused job.

    Raises:
        MalformedResponseError: neither success nor rejection.
    """
    if response.rejection is not None:
        return BatchValidationError(
            [
                JobValidationError(error.index, rejection_from_wire(error.rejection))
                for error in response.rejection.errors
            ]
        )
    if response.success is None:
        raise MalformedResponseError("the answer to an atomic batch has no outcome")
    return [EnqueueAck(ack.job_id, ack.deduplicated) for ack in response.success.responses]


def rejection_from_wire(rejection: records.JobRejection | None) -> JobRejection:
    """Why a job was refused; ``UnknownRejection`` for a reason that we do not know."""
    for member in _REASONS.values() if rejection is not None else ():
        reason: Any = getattr(rejection, member)
        if reason is not None:
            return _reason_from_wire(reason)
    return UnknownRejection()


def _reason_from_wire(reason: Any) -> JobRejection:
    if isinstance(reason, records.ScheduledTooFar):
        try:
            actual = reason.actual and datetime_from_wire(reason.actual, "actual")
        except DecodeError:
            actual = None
        return ScheduledTooFar(seconds_from_wire(reason.horizon), actual)
    # Class and fields have the same names on both sides.
    values = (getattr(reason, name) for name in reason.__match_args__)
    cls: type[JobRejection] = getattr(types, type(reason).__name__)
    return cls(*(tuple(value) if isinstance(value, list) else value for value in values))


def rejection_to_wire(rejection: JobRejection) -> records.JobRejection:
    """The record of a rejection; no reason is set for ``UnknownRejection``."""
    member = _REASONS.get(type(rejection).__name__)
    if member is None:
        return records.JobRejection()
    return records.JobRejection(**{member: _reason_to_wire(rejection)})


def _reason_to_wire(rejection: JobRejection) -> Any:
    if isinstance(rejection, ScheduledTooFar):
        return records.ScheduledTooFar(
            horizon=seconds_to_wire(rejection.horizon),
            actual=None if rejection.actual is None else datetime_to_wire(rejection.actual),
        )
    cls = getattr(records, type(rejection).__name__)
    values = (getattr(rejection, name) for name in cls.__match_args__)
    return cls(*(list(value) if isinstance(value, tuple) else value for value in values))


def lease_expiry_from_wire(response: records.ExtendResponse) -> datetime:
    """The new end of a lease, by the server's clock.

    Raises:
        MalformedResponseError: it is not set, or before 1970.
    """
    try:
        return lease_end_from_wire(response.lease_expires_at)
    except DecodeError as error:
        raise MalformedResponseError(str(error)) from None


def server_info_from_wire(response: records.GetServerInfoResponse) -> ServerInfo:
    """What the server says of itself; a duration that it does not give is 0.

    Raises:
        MalformedServerInfoError: no version, or no time that we can hold.
    """
    if not response.server_version:
        raise MalformedServerInfoError("server_version is empty")
    try:
        server_time = epoch_datetime_from_wire(response.server_time, "server_time")
    except DecodeError as error:
        raise MalformedServerInfoError(str(error)) from None
    return ServerInfo(
        server_version=response.server_version,
        supported_protocol_versions=tuple(response.supported_protocol_versions),
        server_time=server_time,
        restricts_encodings=response.restricts_encodings,
        allowed_encodings=tuple(response.allowed_encodings),
        max_payload_bytes=response.max_payload_bytes,
        max_custom_entries=response.max_custom_entries,
        max_custom_total_bytes=response.max_custom_total_bytes,
        max_custom_key_bytes=response.max_custom_key_bytes,
        max_queue_name_bytes=response.max_queue_name_bytes,
        max_job_type_bytes=response.max_job_type_bytes,
        max_idempotency_key_bytes=response.max_idempotency_key_bytes,
        max_schedule_horizon=seconds_from_wire(response.max_schedule_horizon),
        max_enqueue_batch=response.max_enqueue_batch,
        max_reserve_batch=response.max_reserve_batch,
        max_reserve_queues=response.max_reserve_queues,
        max_wait_timeout=seconds_from_wire(response.max_wait_timeout),
        max_lease_duration=seconds_from_wire(response.max_lease_duration),
        strict_queues=response.strict_queues,
        dead_letter_retention_enabled=response.dead_letter_retention_enabled,
    )
