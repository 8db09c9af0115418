"""A leased job as it comes from the server, or what can be read of a bad one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from sepp_trio.types import Job, TraceContext

from .. import records
from .._codec import decoder_of
from .._errors import DecodeError
from .._parts import custom_of, trace_context_of
from .._primitives import Slice, split_fields
from ._time import datetime_from_wire, epoch_datetime_from_wire, lease_end_from_wire
from ._values import custom_from_wire, payload_from_wire, trace_context_from_wire

MAX_PRIORITY = 9


@dataclass(frozen=True, slots=True)
class MalformedJob:
    """A job that cannot be given to a handler: the server has leased it all the same.

    `job_id` and `attempt` name the lease as far as they can be read (else ``""`` and 0): with
    both, the job can be nacked.
    """

    job_id: str
    attempt: int
    queue: str
    reason: str

    @property
    def can_be_nacked(self) -> bool:
        """Whether the lease is known."""
        return bool(self.job_id) and self.attempt > 0


def job_from_wire(
    raw: bytes | Slice,
    *,
    worker_id: str | None = None,
    lease_duration: float | None = None,
    deadline_of: Callable[[datetime], float] | None = None,
) -> Job | MalformedJob:
    """One job of a ReserveResponse.

    `worker_id` and `lease_duration` (of the reserve) and `lease_deadline` (what `deadline_of`
    makes of ``lease_expires_at``) become part of the job.

    Malformed is what cannot be decoded, lacks id, type, attempt or a time of the server, has a
    priority beyond 9, a custom entry without a value, or a payload without data or encoding. A
    bad trace context and a bad ``scheduled_at`` (which the server echoes as they were sent) are
    left out.
    """
    try:
        job = decoder_of(records.Job)(raw)
    except DecodeError as error:
        job = _readable(bytes(raw))
        return MalformedJob(job.id, job.attempt, job.queue, str(error))
    try:
        check_job(job)
        if not job.attempt:
            raise DecodeError("attempt is 0")
        lease_expires_at = lease_end_from_wire(job.lease_expires_at)
        return Job(
            job.id,
            job.queue,
            job.job_type,
            payload_from_wire(job.payload),
            job.priority,
            job.attempt,
            job.max_attempts,
            epoch_datetime_from_wire(job.enqueued_at, "enqueued_at"),
            lease_expires_at,
            None if job.scheduled_at is None else schedule_of(job),
            custom_from_wire(custom_of(job)) if job.custom else {},
            None if job.trace_context is None else trace_of(job),
            None if deadline_of is None else deadline_of(lease_expires_at),
            worker_id,
            lease_duration,
        )
    except DecodeError as error:
        return MalformedJob(job.id, job.attempt, job.queue, str(error))


def check_job(job: records.Job) -> None:
    """Refuse a job, leased or dead, that no handler could have.

    Raises:
        DecodeError: it has no id, no type, or a priority beyond 9.
    """
    if not job.id:
        raise DecodeError("id is empty")
    if not job.job_type:
        raise DecodeError("job_type is empty")
    if job.priority > MAX_PRIORITY:
        raise DecodeError(f"priority is {job.priority}, beyond {MAX_PRIORITY}")


def schedule_of(job: records.Job) -> datetime | None:
    """When the producer wanted the job, None if not set or not a time we can hold."""
    if job.scheduled_at is None:
        return None
    try:
        return datetime_from_wire(job.scheduled_at, "scheduled_at")
    except DecodeError:
        return None


def trace_of(job: records.Job) -> TraceContext | None:
    """The job's trace context, None if not set or not valid."""
    try:
        return trace_context_from_wire(trace_context_of(job))
    except DecodeError:
        return None


def _readable(raw: bytes) -> records.Job:
    """The fields of a job that can be read one by one, up to where the bytes make no sense."""
    job = records.Job()
    for field in split_fields(raw):
        try:
            read = decoder_of(records.Job)(field)
        except DecodeError:
            continue
        job.id = read.id or job.id
        job.attempt = read.attempt or job.attempt
        job.queue = read.queue or job.queue
    return job
