"""What the two typed drivers share: both libraries name their values alike."""

from __future__ import annotations

import dataclasses
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from tests.conformance.face import Rejection

if TYPE_CHECKING:
    from collections.abc import Mapping

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def instant_ms(value: datetime) -> int:
    """A datetime as milliseconds since the epoch."""
    return (value - _EPOCH) // _MILLISECOND


def plain(value: object) -> object:
    """Durations as seconds, instants as milliseconds, tuples as lists, the rest as it is."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, datetime):
        return instant_ms(value)
    return list(value) if isinstance(value, tuple) else value


def rejection(value: Any) -> Rejection:
    """A library's rejection: the oneof member is the class name in snake case."""
    reason = re.sub(r"(?<!^)(?=[A-Z])", "_", type(value).__name__).lower()
    fields = {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if "detail" in fields:  # sepp-py's name for it
        fields["message"] = fields.pop("detail")
    return Rejection(reason, fields)


def info_fields(value: Any) -> Mapping[str, object]:
    """A library's server info, by the names of the contract."""
    fields = {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if "version" in fields:  # sepp-py's name for it
        fields["server_version"] = fields.pop("version")
    return fields


def payload_pair(value: Any) -> tuple[bytes, str] | None:
    """A library's payload as (data, encoding)."""
    return None if value is None else (value.data, value.encoding)


def trace_pair(value: Any) -> tuple[str, str | None] | None:
    """A library's trace context as (traceparent, tracestate)."""
    return None if value is None else (value.traceparent, value.tracestate)
