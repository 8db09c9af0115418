"""A reserved job as it came from the server: good enough to run, or not."""

from __future__ import annotations

from ..types import Job
from ..wire import DecodeError, Slice, convert, custom_of, decoder_of, records

_LAST_SECOND = 253_402_300_799
"""Of the year 9999: later times no ``datetime`` can hold."""

_MAX_PRIORITY = 9
_NANOS = 10**9


class JobReader:
    """Decodes jobs, as far as it takes to know that a handler can have them.

    Handlers look at few of their parts: :class:`JobCtx` converts those.
    """

    def __init__(self) -> None:
        self._decode = decoder_of(records.Job)
        # The latest good ones. Jobs that come together share them, even as objects.
        self._enqueued_at: records.Timestamp | None = None
        self._expires_at: records.Timestamp | None = None

    def read(self, raw: bytes | Slice) -> records.Job | convert.MalformedJob:
        """One job of an answer."""
        try:
            job = self._decode(raw)
            payload = job.payload
            if (
                job.id
                and job.job_type
                and job.attempt
                and job.priority <= _MAX_PRIORITY
                and (payload is None or (payload.data and payload.encoding))
                and (
                    (
                        job.enqueued_at is self._enqueued_at is not None
                        and job.lease_expires_at is self._expires_at
                    )
                    or self._has_good_times(job)
                )
            ):
                if job.custom:
                    convert.custom_from_wire(custom_of(job))
                return job
        except DecodeError as error:
            reason = str(error)
        else:
            reason = "it does not hold what a job must"
        judged = convert.job_from_wire(raw)
        if isinstance(judged, Job):  # the two judges disagree: play safe
            return convert.MalformedJob(judged.id, judged.attempt, judged.queue, reason)
        return judged

    def _has_good_times(self, job: records.Job) -> bool:
        enqueued, expires = job.enqueued_at, job.lease_expires_at
        if (
            enqueued is None
            or expires is None
            or not 0 <= enqueued[0] <= _LAST_SECOND
            or expires[0] < 0
            or not 0 <= enqueued[1] < _NANOS
            or not 0 <= expires[1] < _NANOS
        ):
            return False
        self._enqueued_at, self._expires_at = enqueued, expires
        return True
