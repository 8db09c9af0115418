"""Payload, custom map and trace context."""

from __future__ import annotations

from collections.abc import Mapping

from sepp_trio.types import Payload, Primitive, TraceContext

from .. import records
from .._errors import DecodeError


def payload_from_wire(payload: records.Payload | None) -> Payload | None:
    """A job's payload.

    Raises:
        DecodeError: it is there, but without data or without an encoding.
    """
    if payload is None:
        return None
    if payload.data and payload.encoding:
        # Bytes and valid Unicode they are by decoding.
        return Payload._of_checked(payload.data, payload.encoding)
    try:
        return Payload(payload.data, payload.encoding)
    except ValueError as error:
        raise DecodeError(str(error)) from None


def custom_from_wire(custom: Mapping[str, records.PrimitiveValue]) -> dict[str, Primitive]:
    """The custom map with plain values.

    Raises:
        DecodeError: a value is not set (or of a kind that this contract does not have).
    """
    return {key: _primitive(key, value) for key, value in custom.items()}


def _primitive(key: str, value: records.PrimitiveValue) -> Primitive:
    if value.string_value is not None:
        return value.string_value
    if value.int_value is not None:
        return value.int_value
    if value.bool_value is not None:
        return value.bool_value
    if value.double_value is not None:
        return value.double_value
    raise DecodeError(f"custom[{key!r}] has no value")


def trace_context_from_wire(context: records.TraceContext | None) -> TraceContext | None:
    """A trace context; None for one that breaks W3C's form: it must not cost the job."""
    if context is None:
        return None
    try:
        return TraceContext(context.traceparent, context.tracestate)
    except ValueError:
        return None


def trace_context_to_wire(context: TraceContext) -> records.TraceContext:
    """The record of a trace context."""
    return records.TraceContext(context.traceparent, context.tracestate)
