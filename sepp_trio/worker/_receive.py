"""A reserved job as it came from the server: good enough to run, or not."""

from __future__ import annotations

from collections.abc import Callable

from ..types import Job
from ..wire import DecodeError, convert, custom_of, records

_LAST_SECOND = 253_402_300_799
"""Of the year 9999: later times no ``datetime`` can hold."""

_NANOS = 10**9


def read_job(
    raw: bytes, decode: Callable[[bytes], records.Job]
) -> records.Job | convert.MalformedJob:
    """Decode one job, as far as it takes to know that a handler can have it.

    Handlers look at few of its parts: :class:`JobCtx` converts those.
    """
    try:
        job = decode(raw)
        if _is_good(job):
            return job
    except DecodeError as error:
        reason = str(error)
    else:
        reason = "it does not hold what a job must"
    judged = convert.job_from_wire(raw)
    if isinstance(judged, Job):  # the two judges disagree: play safe
        return convert.MalformedJob(judged.id, judged.attempt, judged.queue, reason)
    return judged


def _is_good(job: records.Job) -> bool:
    enqueued, expires, payload = job.enqueued_at, job.lease_expires_at, job.payload
    if (
        not job.id
        or not job.job_type
        or not job.attempt
        or job.priority > 9
        or enqueued is None
        or expires is None
        or not 0 <= enqueued[0] <= _LAST_SECOND
        or expires[0] < 0
        or not 0 <= enqueued[1] < _NANOS
        or not 0 <= expires[1] < _NANOS
        or (payload is not None and not (payload.data and payload.encoding))
    ):
        return False
    if job.custom:
        convert.custom_from_wire(custom_of(job))
    return True
