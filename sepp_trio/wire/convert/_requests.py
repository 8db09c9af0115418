"""What a client sends."""

from __future__ import annotations

from sepp_trio.types import EnqueueRequest, ReserveOptions, RetryDirective

from .. import records
from ._time import datetime_to_wire, seconds_to_wire
from ._values import custom_to_wire, payload_to_wire, trace_context_to_wire


def enqueue_request_to_wire(request: EnqueueRequest) -> records.EnqueueRequest:
    """The record of a request; a time before 1970 is sent as it is."""
    return records.EnqueueRequest(
        queue=request.queue,
        job_type=request.job_type,
        payload=payload_to_wire(request.payload),
        idempotency_key=request.idempotency_key,
        priority=request.priority,
        max_attempts=request.max_attempts,
        trace_context=trace_context_to_wire(request.trace_context),
        custom=custom_to_wire(request.custom) if request.custom else {},
        scheduled_at=(
            None if request.scheduled_at is None else datetime_to_wire(request.scheduled_at)
        ),
    )


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
