"""What names a lease, read from whatever the caller has of a job."""

from __future__ import annotations

from typing import NamedTuple

from ..types import LeasedJob
from ..types._checks import integer, text


class LeaseName(NamedTuple):
    """Id and attempt; the worker id of the reserve, if the job knows it."""

    id: str
    attempt: int
    worker_id: str | None


def lease_of(job: LeasedJob) -> LeaseName:
    """Read id, attempt and worker id of ``job``.

    Raises:
        TypeError, ValueError: it has no id or no attempt (1 or more), or a bad worker id.
    """
    try:
        job_id, attempt = job.id, job.attempt
    except AttributeError:
        kind = type(job).__name__
        raise TypeError(f"job must have an id and an attempt, as a Job has, not {kind}") from None
    worker_id = getattr(job, "worker_id", None)
    if worker_id is not None:
        text(worker_id, "job.worker_id")
    return LeaseName(text(job_id, "job.id"), integer(attempt, "job.attempt", 1), worker_id)
