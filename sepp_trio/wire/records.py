"""One lean record per message of the contract: what the codec decodes into and encodes from.

Records have the names and fields of the messages in ``protos/sepp/v1/queue.proto`` and hold what
was on the wire, unjudged; :mod:`sepp_trio.wire.convert` turns them into domain values. Every field
has the default it has on the wire, so a message is built by keyword.

* scalars are plain values, enum numbers are ``int``;
* ``optional`` fields, messages and each member of a oneof are ``None`` when absent. At most one
  member of a oneof is set;
* a Timestamp or Duration is ``(seconds, nanos)``, an Empty is ``()``;
* a field declared as ``bytes`` where the contract has a message is left undecoded, because most
  readers never look at it or look at its parts one by one: :func:`sepp_trio.wire.custom_of`,
  :func:`sepp_trio.wire.trace_context_of`, ``decoder_of(Job)``. Its content is not checked by
  decoding the message around it. Large ones of a list are a :class:`Slice` of that message, which
  decoders take as they take ``bytes``.

The codec compiler refuses a record that does not fit its message's field table.
"""

from __future__ import annotations

from dataclasses import field
from typing import TypeAlias

from ._primitives import Slice
from ._record import Record, record

# (seconds, nanos). A canonical Timestamp has 0 <= nanos < 10**9, a canonical Duration has both
# parts of one sign; peers need not send canonical values.
Timestamp: TypeAlias = tuple[int, int]
Duration: TypeAlias = tuple[int, int]
Empty: TypeAlias = tuple[()]


# ---- Parts of a job ----


@record
class PrimitiveValue(Record):
    """A value of a custom map: one of the four is set."""

    string_value: str | None = None
    double_value: float | None = None
    int_value: int | None = None
    bool_value: bool | None = None


@record
class TraceContext(Record):
    """W3C trace context."""

    traceparent: str = ""
    tracestate: str | None = None


@record
class Payload(Record):
    """A job's data and the label that says how to read it."""

    data: bytes = b""
    encoding: str = ""


@record
class Job(Record):
    """A job under a lease, or in a dead-letter record."""

    id: str = ""
    job_type: str = ""
    payload: Payload | None = None
    priority: int = 0
    # The message, undecoded: see trace_context_of and encode_trace_context.
    trace_context: bytes | None = None
    enqueued_at: Timestamp | None = None
    attempt: int = 0
    max_attempts: int = 0
    lease_expires_at: Timestamp | None = None
    # The entries of the map as they stand in the message: see custom_of and encode_custom.
    custom: bytes = b""
    scheduled_at: Timestamp | None = None
    queue: str = ""


# ---- Enqueue ----


@record
class EnqueueRequest(Record):
    """A job to be stored."""

    queue: str = ""
    job_type: str = ""
    payload: Payload | None = None
    idempotency_key: str | None = None
    priority: int | None = None
    max_attempts: int | None = None
    trace_context: TraceContext | None = None
    custom: dict[str, PrimitiveValue] = field(default_factory=dict)
    scheduled_at: Timestamp | None = None


@record
class EnqueueResponse(Record):
    """The stored job's id, or that of the job that had the same key."""

    job_id: str = ""
    deduplicated: bool = False


@record
class EnqueueBatchRequest(Record):
    """Request of EnqueueBatch and EnqueueAtomic."""

    jobs: list[EnqueueRequest] = field(default_factory=list)


@record
class EnqueueBatchResponse(Record):
    """One result per job."""

    results: list[JobResult] = field(default_factory=list)


@record
class JobResult(Record):
    """Stored or rejected."""

    success: EnqueueResponse | None = None
    rejection: JobRejection | None = None


@record
class EnqueueAtomicResponse(Record):
    """All stored or none."""

    success: EnqueueAtomicSuccess | None = None
    rejection: BatchValidationFailure | None = None


@record
class EnqueueAtomicSuccess(Record):
    """One response per job."""

    responses: list[EnqueueResponse] = field(default_factory=list)


@record
class BatchValidationFailure(Record):
    """Every job that was refused."""

    errors: list[JobValidationError] = field(default_factory=list)


@record
class JobValidationError(Record):
    """Position in the request, and why."""

    index: int = 0
    rejection: JobRejection | None = None


@record
class JobRejection(Record):
    """One reason is set; none if the reason is newer than this contract."""

    unknown_queue: UnknownQueue | None = None
    payload_too_large: PayloadTooLarge | None = None
    encoding_not_allowed: EncodingNotAllowed | None = None
    job_type_not_allowed: JobTypeNotAllowed | None = None
    custom_entries_too_many: CustomEntriesTooMany | None = None
    custom_map_too_large: CustomMapTooLarge | None = None
    custom_key_too_long: CustomKeyTooLong | None = None
    queue_name_too_long: QueueNameTooLong | None = None
    job_type_name_too_long: JobTypeNameTooLong | None = None
    idempotency_key_too_long: IdempotencyKeyTooLong | None = None
    scheduled_too_far: ScheduledTooFar | None = None
    invalid_request: InvalidRequest | None = None
    queue_full: QueueFull | None = None
    queue_closing: QueueClosing | None = None


@record
class UnknownQueue(Record):
    """Strict server, undeclared queue."""

    queue: str = ""


@record
class PayloadTooLarge(Record):
    """In bytes."""

    limit: int = 0
    actual: int = 0


@record
class EncodingNotAllowed(Record):
    """The payload's encoding, and those that are taken."""

    encoding: str = ""
    allowed: list[str] = field(default_factory=list)


@record
class JobTypeNotAllowed(Record):
    """The job's type, and those that the queue takes."""

    job_type: str = ""
    allowed: list[str] = field(default_factory=list)


@record
class CustomEntriesTooMany(Record):
    """Entries of the custom map."""

    limit: int = 0
    actual: int = 0


@record
class CustomMapTooLarge(Record):
    """Bytes of the custom map."""

    limit: int = 0
    actual: int = 0


@record
class CustomKeyTooLong(Record):
    """Bytes of one custom key."""

    key: str = ""
    limit: int = 0
    actual: int = 0


@record
class QueueNameTooLong(Record):
    """In bytes."""

    limit: int = 0
    actual: int = 0


@record
class JobTypeNameTooLong(Record):
    """In bytes."""

    limit: int = 0
    actual: int = 0


@record
class IdempotencyKeyTooLong(Record):
    """In bytes."""

    limit: int = 0
    actual: int = 0


@record
class ScheduledTooFar(Record):
    """How far ahead is allowed, and the time asked for."""

    horizon: Duration | None = None
    actual: Timestamp | None = None


@record
class InvalidRequest(Record):
    """The request breaks a rule of its own."""

    message: str = ""


@record
class QueueFull(Record):
    """Live jobs the queue may hold."""

    queue: str = ""
    limit: int = 0


@record
class QueueClosing(Record):
    """The queue is being deleted."""

    queue: str = ""


# ---- Reserve ----


@record
class ReserveRequest(Record):
    """Which queues, how long to wait, how long to lease."""

    queues: list[str] = field(default_factory=list)
    wait_timeout: Duration | None = None
    lease_duration: Duration | None = None
    worker_id: str | None = None
    max_jobs: int | None = None


@record
class ReserveResponse(Record):
    """The leased jobs, each an undecoded Job: one bad job must not take the others with it."""

    jobs: list[bytes | Slice] = field(default_factory=list)


# ---- Ack, nack, extend ----


@record
class AckRequest(Record):
    """The lease whose job is done."""

    job_id: str = ""
    attempt: int = 0
    worker_id: str | None = None


@record
class AckResponse(Record):
    """Echoes the id."""

    job_id: str = ""


@record
class NackRequest(Record):
    """The lease whose job failed."""

    job_id: str = ""
    attempt: int = 0
    reason: str | None = None
    retry: NackRetry | None = None
    worker_id: str | None = None


@record
class NackRetry(Record):
    """What becomes of the job: one of the three is set."""

    default: Empty | None = None
    delay: Duration | None = None
    dead_letter: Empty | None = None


@record
class NackResponse(Record):
    """Whether there will be no further attempt."""

    job_id: str = ""
    dead_lettered: bool = False


@record
class ExtendRequest(Record):
    """The lease, and its new length from now."""

    job_id: str = ""
    attempt: int = 0
    lease_duration: Duration | None = None
    worker_id: str | None = None


@record
class ExtendResponse(Record):
    """The new end of the lease."""

    job_id: str = ""
    lease_expires_at: Timestamp | None = None


# ---- Dead letters ----


@record
class DeadLetterRecord(Record):
    """A job that will not be delivered again."""

    job: Job | None = None
    cause: int = 0
    failed_at: Timestamp | None = None
    final_attempt: int = 0
    last_reason: str | None = None


@record
class DrainDeadLettersRequest(Record):
    """From which queue, how many."""

    queue: str | None = None
    max: int | None = None


@record
class DrainDeadLettersResponse(Record):
    """The drained records, each an undecoded DeadLetterRecord: the server has deleted them."""

    records: list[bytes | Slice] = field(default_factory=list)


# ---- Server info ----


@record
class GetServerInfoRequest(Record):
    """Has no fields."""


@record
class GetServerInfoResponse(Record):
    """Limits, version and clock."""

    server_version: str = ""
    supported_protocol_versions: list[str] = field(default_factory=list)
    server_time: Timestamp | None = None
    restricts_encodings: bool = False
    allowed_encodings: list[str] = field(default_factory=list)
    max_payload_bytes: int = 0
    max_custom_entries: int = 0
    max_custom_total_bytes: int = 0
    max_custom_key_bytes: int = 0
    max_queue_name_bytes: int = 0
    max_job_type_bytes: int = 0
    max_idempotency_key_bytes: int = 0
    max_schedule_horizon: Duration | None = None
    max_enqueue_batch: int = 0
    max_reserve_batch: int = 0
    max_reserve_queues: int = 0
    max_wait_timeout: Duration | None = None
    max_lease_duration: Duration | None = None
    strict_queues: bool = False
    dead_letter_retention_enabled: bool = False
