"""Dead letters: the server deletes them with the answer, so nothing of them may be lost here."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from sepp_trio.types import DeadLetterCause, DeadLetterRecord, RawDeadLetter

from .. import records
from .._codec import codecs, decoder_of
from .._errors import DecodeError
from .._parts import custom_of
from .._primitives import Slice
from ._jobs import check_job, schedule_of, trace_of
from ._time import epoch_datetime_from_wire
from ._values import custom_from_wire, payload_from_wire


def dead_letter_from_wire(raw: bytes | Slice) -> DeadLetterRecord | RawDeadLetter:
    """One record of a DrainDeadLettersResponse; its bytes, with the reason, if it is malformed."""
    try:
        record = decoder_of(records.DeadLetterRecord)(raw)
        job = record.job
        if job is None:
            raise DecodeError("job is not set")
        check_job(job)
        return DeadLetterRecord(
            job_id=job.id,
            queue=job.queue,
            job_type=job.job_type,
            payload=payload_from_wire(job.payload),
            priority=job.priority,
            max_attempts=job.max_attempts,
            enqueued_at=epoch_datetime_from_wire(job.enqueued_at, "enqueued_at"),
            cause=cause_from_wire(record.cause),
            failed_at=epoch_datetime_from_wire(record.failed_at, "failed_at"),
            final_attempt=record.final_attempt,
            last_reason=record.last_reason,
            scheduled_at=schedule_of(job),
            custom=custom_from_wire(custom_of(job)),
            trace_context=trace_of(job),
        )
    except DecodeError as error:
        return RawDeadLetter(bytes(raw), str(error))


def cause_from_wire(number: int) -> DeadLetterCause:
    """The cause with this number; ``UNSPECIFIED`` for one that we do not know."""
    return _causes().get(number, DeadLetterCause.UNSPECIFIED)


def cause_to_wire(cause: DeadLetterCause) -> int:
    """The number of a cause."""
    return next(number for number, known in _causes().items() if known is cause)


@functools.cache
def _causes() -> Mapping[int, DeadLetterCause]:
    names: Mapping[int, str] = codecs().ENUMS["DeadLetterCause"]
    return {number: DeadLetterCause[name] for number, name in names.items()}
