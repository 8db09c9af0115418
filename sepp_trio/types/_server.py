"""What a server says of itself, and its dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from ._enqueue import EnqueueRequest
from ._payload import Payload, Primitive, TraceContext
from ._value import Value


class DeadLetterCause(Enum):
    """Why a job was given up; a number from a newer server reads as ``UNSPECIFIED``."""

    UNSPECIFIED = "unspecified"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    REJECTED = "rejected"
    LEASE_EXPIRED = "lease_expired"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DeadLetterRecord(Value):
    """A job that was given up. ``last_reason`` is that of the last nack, if it gave one."""

    job_id: str
    queue: str
    job_type: str
    payload: Payload | None
    priority: int
    max_attempts: int
    enqueued_at: datetime
    cause: DeadLetterCause
    failed_at: datetime
    final_attempt: int
    last_reason: str | None = None
    scheduled_at: datetime | None = None
    custom: Mapping[str, Primitive] = field(default_factory=dict, hash=False)
    trace_context: TraceContext | None = None

    def to_enqueue_request(self) -> EnqueueRequest:
        """The same job as a new one: no schedule, and no idempotency key (the old one may
        still be taken)."""
        return EnqueueRequest(
            self.queue,
            self.job_type,
            self.payload,
            priority=self.priority,
            max_attempts=self.max_attempts or None,
            custom=self.custom,
            trace_context=self.trace_context,
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RawDeadLetter(Value):
    """A drained record that could not be read: the server has already deleted it, so
    its bytes (a ``sepp.v1.DeadLetterRecord``) are kept here."""

    data: bytes
    error: str


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ServerInfo(Value):
    """The server's global limits; a queue may have its own. Durations in seconds."""

    server_version: str
    supported_protocol_versions: tuple[str, ...]
    server_time: datetime
    restricts_encodings: bool
    allowed_encodings: tuple[str, ...]
    max_payload_bytes: int
    max_custom_entries: int
    max_custom_total_bytes: int
    max_custom_key_bytes: int
    max_queue_name_bytes: int
    max_job_type_bytes: int
    max_idempotency_key_bytes: int
    max_schedule_horizon: float
    max_enqueue_batch: int
    max_reserve_batch: int
    max_reserve_queues: int
    max_wait_timeout: float
    max_lease_duration: float
    strict_queues: bool
    dead_letter_retention_enabled: bool
