"""The records of a request: the long way, which the encoder of batches is held against."""

from __future__ import annotations

from sepp_trio.types import EnqueueRequest, Primitive
from sepp_trio.wire import records
from sepp_trio.wire.convert import datetime_to_wire, trace_context_to_wire


def record_of(request: EnqueueRequest) -> records.EnqueueRequest:
    """What is on the wire for it."""
    payload, context, time = request.payload, request.trace_context, request.scheduled_at
    return records.EnqueueRequest(
        queue=request.queue,
        job_type=request.job_type,
        payload=None if payload is None else records.Payload(payload.data, payload.encoding),
        idempotency_key=request.idempotency_key,
        priority=request.priority,
        max_attempts=request.max_attempts,
        trace_context=None if context is None else trace_context_to_wire(context),
        custom={key: record_of_value(value) for key, value in request.custom.items()},
        scheduled_at=None if time is None else datetime_to_wire(time),
    )


def record_of_value(value: Primitive) -> records.PrimitiveValue:
    """A value of a custom map."""
    # A bool is an int to Python, not to the contract.
    if isinstance(value, bool):
        return records.PrimitiveValue(bool_value=value)
    if isinstance(value, int):
        return records.PrimitiveValue(int_value=value)
    if isinstance(value, float):
        return records.PrimitiveValue(double_value=value)
    return records.PrimitiveValue(string_value=value)
