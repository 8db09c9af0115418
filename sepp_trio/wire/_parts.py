"""The parts of a Job that its record keeps undecoded: reading and making them."""

from __future__ import annotations

from collections.abc import Mapping

from ._codec import decoder_of, encoder_of, part_decoder, part_encoder
from .records import Job, PrimitiveValue, TraceContext


def custom_of(job: Job) -> dict[str, PrimitiveValue]:
    """The custom map of a job; of entries with the same key the last one counts.

    Raises:
        DecodeError: it cannot be read.
    """
    if not job.custom:
        return {}
    custom: dict[str, PrimitiveValue] = part_decoder("Job_custom")(job.custom)[0]
    return custom


def encode_custom(custom: Mapping[str, PrimitiveValue]) -> bytes:
    """What a Job record holds for a custom map.

    Raises:
        EncodeError: a key or value cannot be written.
    """
    return part_encoder("Job_custom")((custom,)) if custom else b""


def trace_context_of(job: Job) -> TraceContext | None:
    """The trace context of a job.

    Raises:
        DecodeError: it cannot be read.
    """
    if job.trace_context is None:
        return None
    return decoder_of(TraceContext)(job.trace_context)


def encode_trace_context(context: TraceContext | None) -> bytes | None:
    """What a Job record holds for a trace context.

    Raises:
        EncodeError: it cannot be written.
    """
    return None if context is None else encoder_of(TraceContext)(context)
