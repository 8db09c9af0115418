"""What is wrong with a request: structure first, then the limits; nothing here looks at jobs
that are stored.

Checks run in the order that the contract gives them, since a request with several faults is
answered with the first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from sepp_trio.wire import records

from ._names import queue_name_problem
from ._time import NEVER, after, duration_ms, nanos, timestamp_ms, to_wire
from .config import BrokerConfig, QueueSettings

_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def refuse(message: str) -> NoReturn:
    """The request is malformed or over a limit."""
    raise GRPCError(Status.INVALID_ARGUMENT, message)


# ---- Enqueue ----


def check_batch(config: BrokerConfig, jobs: Sequence[records.EnqueueRequest]) -> None:
    """The size of a batch.

    :raises GRPCError: INVALID_ARGUMENT.
    """
    if not jobs:
        refuse("jobs must not be empty")
    limit = config.limits.max_enqueue_batch
    if len(jobs) > limit:
        refuse(f"{len(jobs)} jobs are over max_enqueue_batch ({limit})")


def job_rejection(
    config: BrokerConfig, job: records.EnqueueRequest, now: int
) -> records.JobRejection | None:
    """Why a job cannot be taken whatever is stored, or ``None``."""
    if problem := _job_problem(job):
        return records.JobRejection(invalid_request=records.InvalidRequest(problem))
    if config.strict_queues and not config.is_declared(job.queue):
        return records.JobRejection(unknown_queue=records.UnknownQueue(job.queue))
    settings = config.settings_of(job.queue)
    return (
        _name_rejection(config, settings, job)
        or _payload_rejection(settings, job.payload)
        or _custom_rejection(settings, job.custom)
        or _schedule_rejection(settings, job.scheduled_at, now)
    )


def _job_problem(job: records.EnqueueRequest) -> str | None:
    if problem := queue_name_problem(job.queue):
        return f"queue {problem}"
    if not job.job_type:
        return "job_type must not be empty"
    if job.payload is not None:
        if not job.payload.data:
            return "payload.data must not be empty; leave out the payload instead"
        if not job.payload.encoding:
            return "payload.encoding must not be empty"
    if job.idempotency_key == "":
        return "idempotency_key must not be empty"
    if job.priority is not None and job.priority > 9:
        return f"priority must be between 0 and 9, not {job.priority}"
    if job.max_attempts == 0:
        return "max_attempts must be at least 1"
    if job.trace_context is not None and not job.trace_context.traceparent:
        return "trace_context.traceparent must not be empty"
    for key in sorted(job.custom):
        if not key:
            return "custom must not have an empty key"
        if _value_bytes(job.custom[key]) is None:
            return f"custom[{key}] must have a value"
    return None


def _name_rejection(
    config: BrokerConfig, settings: QueueSettings, job: records.EnqueueRequest
) -> records.JobRejection | None:
    limits = config.limits
    if (size := _text_bytes(job.queue)) > limits.max_queue_name_bytes:
        return records.JobRejection(
            queue_name_too_long=records.QueueNameTooLong(limits.max_queue_name_bytes, size)
        )
    if (size := _text_bytes(job.job_type)) > limits.max_job_type_bytes:
        return records.JobRejection(
            job_type_name_too_long=records.JobTypeNameTooLong(limits.max_job_type_bytes, size)
        )
    types = settings.allowed_job_types
    if types is not None and job.job_type not in types:
        return records.JobRejection(
            job_type_not_allowed=records.JobTypeNotAllowed(job.job_type, list(types))
        )
    key = job.idempotency_key
    if key is not None and (size := _text_bytes(key)) > limits.max_idempotency_key_bytes:
        return records.JobRejection(
            idempotency_key_too_long=records.IdempotencyKeyTooLong(
                limits.max_idempotency_key_bytes, size
            )
        )
    return None


def _payload_rejection(
    settings: QueueSettings, payload: records.Payload | None
) -> records.JobRejection | None:
    if payload is None:
        return None
    if (size := len(payload.data)) > settings.max_payload_bytes:
        return records.JobRejection(
            payload_too_large=records.PayloadTooLarge(settings.max_payload_bytes, size)
        )
    encodings = settings.allowed_encodings
    if encodings is not None and payload.encoding not in encodings:
        return records.JobRejection(
            encoding_not_allowed=records.EncodingNotAllowed(payload.encoding, list(encodings))
        )
    return None


def _custom_rejection(
    settings: QueueSettings, custom: dict[str, records.PrimitiveValue]
) -> records.JobRejection | None:
    if not custom:
        return None
    if len(custom) > settings.max_custom_entries:
        return records.JobRejection(
            custom_entries_too_many=records.CustomEntriesTooMany(
                settings.max_custom_entries, len(custom)
            )
        )
    total = 0
    for key in sorted(custom):
        if (size := _text_bytes(key)) > settings.max_custom_key_bytes:
            return records.JobRejection(
                custom_key_too_long=records.CustomKeyTooLong(
                    key, settings.max_custom_key_bytes, size
                )
            )
        total += size + (_value_bytes(custom[key]) or 0)
    if total > settings.max_custom_total_bytes:
        return records.JobRejection(
            custom_map_too_large=records.CustomMapTooLarge(settings.max_custom_total_bytes, total)
        )
    return None


def _schedule_rejection(
    settings: QueueSettings, scheduled_at: records.Timestamp | None, now: int
) -> records.JobRejection | None:
    horizon = settings.max_schedule_horizon_ms
    if scheduled_at is None or timestamp_ms(scheduled_at) <= after(now, horizon):
        return None
    return records.JobRejection(
        scheduled_too_far=records.ScheduledTooFar(to_wire(horizon), scheduled_at)
    )


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _value_bytes(value: records.PrimitiveValue) -> int | None:
    """The size that a value counts for; ``None`` if it has none."""
    if value.string_value is not None:
        return _text_bytes(value.string_value)
    if value.double_value is not None or value.int_value is not None:
        return 8
    return None if value.bool_value is None else 1


# ---- Reserve ----


class ReservePlan(NamedTuple):
    """A reserve that is in order, within the limits."""

    queues: tuple[str, ...]
    wait_ms: int
    lease_ms: int
    max_jobs: int
    worker_id: str | None = None


def reserve_plan(config: BrokerConfig, request: records.ReserveRequest) -> ReservePlan:
    """Check a reserve and cut it to the limits.

    :raises GRPCError: INVALID_ARGUMENT, or FAILED_PRECONDITION for undeclared queues.
    """
    if not request.queues:
        refuse("queues must not be empty")
    for queue in request.queues:
        if problem := queue_name_problem(queue):
            refuse(f"queues item {queue!r} {problem}")
    wait = request.wait_timeout or (0, 0)
    if nanos(wait) < 0:
        refuse("wait_timeout must not be negative")
    lease_ms = _lease_ms(request.lease_duration)
    _check_worker_id(request.worker_id)
    if request.max_jobs == 0:
        refuse("max_jobs must be at least 1")
    limits = config.limits
    if len(request.queues) > limits.max_reserve_queues:
        refuse(
            f"{len(request.queues)} queues are over max_reserve_queues "
            f"({limits.max_reserve_queues})"
        )
    for queue in request.queues:
        if _text_bytes(queue) > limits.max_queue_name_bytes:
            refuse(
                f"queues item {queue!r} is over max_queue_name_bytes "
                f"({limits.max_queue_name_bytes})"
            )
    if config.strict_queues:
        unknown = [queue for queue in request.queues if not config.is_declared(queue)]
        if unknown:
            names = ", ".join(map(repr, unknown))
            raise GRPCError(Status.FAILED_PRECONDITION, f"queues not declared: {names}")
    longest = min(config.settings_of(queue).max_lease_duration_ms for queue in request.queues)
    return ReservePlan(
        # A queue that is listed again is empty by then.
        tuple(dict.fromkeys(request.queues)),
        min(duration_ms(wait), limits.max_wait_timeout_ms),
        min(lease_ms, longest),
        min(request.max_jobs or 1, limits.max_reserve_batch),
        request.worker_id,
    )


# ---- Ack, nack, extend ----


def check_ack(request: records.AckRequest) -> None:
    """:raises GRPCError: INVALID_ARGUMENT."""
    _check_lease(request)
    _check_worker_id(request.worker_id)


def check_nack(request: records.NackRequest) -> None:
    """:raises GRPCError: INVALID_ARGUMENT."""
    _check_lease(request)
    if (retry := request.retry) is not None:
        if retry.delay is not None:
            if nanos(retry.delay) < 0:
                refuse("retry.delay must not be negative")
        elif retry.default is None and retry.dead_letter is None:
            refuse("retry must have a strategy; leave it out for the queue's policy")
    _check_worker_id(request.worker_id)


def extension_ms(request: records.ExtendRequest) -> int:
    """The lease that an extension asks for, in milliseconds.

    :raises GRPCError: INVALID_ARGUMENT.
    """
    _check_lease(request)
    lease_ms = _lease_ms(request.lease_duration)
    _check_worker_id(request.worker_id)
    return lease_ms


def _check_lease(request: records.AckRequest | records.NackRequest | records.ExtendRequest) -> None:
    if not _UUID.fullmatch(request.job_id):
        refuse(f"job_id must be a UUID, not {request.job_id!r}")
    if request.attempt < 1:
        refuse("attempt must be at least 1")


def _lease_ms(lease: records.Duration | None) -> int:
    if lease is None:
        refuse("lease_duration is missing")
    if nanos(lease) <= 0:
        refuse("lease_duration must be more than 0")
    return min(max(duration_ms(lease), 1), NEVER)


def _check_worker_id(worker_id: str | None) -> None:
    if worker_id == "":
        refuse("worker_id must not be empty")


# ---- Dead letters ----


def drain_limit(config: BrokerConfig, request: records.DrainDeadLettersRequest) -> int:
    """How many dead letters to drain.

    :raises GRPCError: INVALID_ARGUMENT.
    """
    if request.queue == "":
        refuse("queue must not be empty")
    if request.max == 0:
        refuse("max must be at least 1")
    return min(request.max or 1, config.limits.max_reserve_batch)
