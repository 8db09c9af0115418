"""The fields of a job, as keyword arguments beside a function's own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Final, TypedDict

from sepp_trio.types import Primitive, TraceContext

_CLOSE: Final = 0.5
"""Less than difflib's own, so that "lease" is close to "lease_duration"."""


class JobFields(TypedDict, total=False):
    """The fields of ``EnqueueRequest`` besides the payload."""

    queue: str
    job_type: str
    idempotency_key: str | None
    priority: int | None
    max_attempts: int | None
    custom: Mapping[str, Primitive]
    trace_context: TraceContext | None
    scheduled_at: datetime | None


def check_job_fields(function: Callable[..., Any], job: Mapping[str, object]) -> None:
    """Refuse what is neither an argument of the function nor a field of a job.

    Raises:
        TypeError: names what is close to it, and all that there is.
    """
    fields = sorted(JobFields.__annotations__)
    unknown = job.keys() - set(fields)
    if not unknown:
        return
    name = min(unknown)
    own = [
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    close = get_close_matches(name, own + fields, 1, _CLOSE)
    hint = f" (did you mean {close[0]}?)" if close else ""
    raise TypeError(
        f"{function.__name__} has no argument {name!r}{hint}, and EnqueueRequest has no such field;"
        f" its arguments are {', '.join(own)}; its fields of EnqueueRequest {', '.join(fields)}"
    )


def check_kind(value: object, field: str, kind: type) -> None:
    """Refuse an optional argument that is of another type, by name."""
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{field} must be a {kind.__name__}, not {type(value).__name__}")
