"""What a client sends beside jobs."""

from __future__ import annotations

from sepp_trio.types import ReserveOptions, RetryDirective

from .. import records
from ._time import seconds_to_wire


def reserve_options_to_wire(options: ReserveOptions) -> records.ReserveRequest:
    """The record of a reserve."""
    # The checks of ReserveOptions have made seconds of what was given.
    assert isinstance(options.wait_timeout, float)
    assert isinstance(options.lease_duration, float)
    return records.ReserveRequest(
        queues=list(options.queues),
        wait_timeout=seconds_to_wire(options.wait_timeout),
        lease_duration=seconds_to_wire(options.lease_duration),
        worker_id=options.worker_id,
        max_jobs=options.max_jobs,
    )


def nack_request_to_wire(
    job_id: str,
    attempt: int,
    directive: RetryDirective,
    reason: str = "",
    worker_id: str | None = None,
) -> records.NackRequest:
    """The record of a nack. No empty reason is sent; lone surrogates, which often come from
    undecodable file names in an exception's text, are written as escapes."""
    return records.NackRequest(
        job_id=job_id,
        attempt=attempt,
        reason=reason.encode(errors="backslashreplace").decode() if reason else None,
        retry=retry_to_wire(directive),
        worker_id=worker_id,
    )


def retry_to_wire(directive: RetryDirective) -> records.NackRetry:
    """The record of a retry directive, always with one member set.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(directive, RetryDirective):
        raise TypeError(f"directive must be a RetryDirective, not {type(directive).__name__}")
    if directive.delay is not None:
        return records.NackRetry(delay=seconds_to_wire(directive.delay))
    if directive.kind == "dead_letter":
        return records.NackRetry(dead_letter=())
    return records.NackRetry(default=())
