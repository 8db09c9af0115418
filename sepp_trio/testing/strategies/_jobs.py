"""Requests of producers, and jobs as a reserve gives them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypedDict, Unpack

from hypothesis import strategies as st

from sepp_trio.types import EnqueueRequest, Job, Payload, Primitive, TraceContext

from ._draw import LIMITS, Drawn, as_strategies, texts
from ._payloads import custom_maps, payloads, trace_contexts

_USUAL_ATTEMPTS: Final = 3
_DAY: Final = timedelta(days=1)
# Jobs are given times around here.
_SOME_DAY: Final = datetime(2026, 1, 1, tzinfo=UTC)
_WORKER_ID: Final = "worker-1"
_DEPENDENT: Final[tuple[str, ...]] = ("attempt", "max_attempts", "scheduled_at", "lease_expires_at")


class RequestFields(TypedDict, total=False):
    """The fields of :func:`enqueue_requests`, as values or as strategies."""

    queue: Drawn[str]
    job_type: Drawn[str]
    payload: Drawn[Payload | None]
    idempotency_key: Drawn[str | None]
    priority: Drawn[int | None]
    max_attempts: Drawn[int | None]
    custom: Drawn[Mapping[str, Primitive]]
    trace_context: Drawn[TraceContext | None]
    scheduled_at: Drawn[datetime | None]


class JobFields(TypedDict, total=False):
    """The fields of :func:`jobs`, as values or as strategies."""

    id: Drawn[str]
    queue: Drawn[str]
    job_type: Drawn[str]
    payload: Drawn[Payload | None]
    priority: Drawn[int]
    attempt: Drawn[int]
    max_attempts: Drawn[int]
    enqueued_at: Drawn[datetime]
    lease_expires_at: Drawn[datetime]
    scheduled_at: Drawn[datetime | None]
    custom: Drawn[Mapping[str, Primitive]]
    trace_context: Drawn[TraceContext | None]
    lease_deadline: Drawn[float | None]
    worker_id: Drawn[str | None]
    lease_duration: Drawn[float | None]


def enqueue_requests(**fields: Unpack[RequestFields]) -> st.SearchStrategy[EnqueueRequest]:
    """Requests that a server with the default limits accepts.

    Fields that are not given are drawn from all that is allowed. ``scheduled_at`` is none, or
    between today's midnight (so that the job is ready at once) and 28 days later.

    Raises:
        TypeError: there is no such field.
    """
    given = as_strategies(fields, RequestFields, "enqueue_requests")
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    scheduled = st.timedeltas(timedelta(0), 28 * _DAY).map(midnight.__add__)
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "queue": _queue_names(),
        "job_type": texts(max_bytes=LIMITS.max_job_type_bytes),
        "payload": payloads(allow_none=True),
        "idempotency_key": st.none() | texts(max_bytes=LIMITS.max_idempotency_key_bytes),
        "priority": st.none() | st.integers(0, 9),
        "max_attempts": st.none() | st.integers(1, LIMITS.max_attempts_ceiling),
        "custom": custom_maps(),
        "trace_context": st.none() | trace_contexts(),
        "scheduled_at": st.none() | scheduled,
    }
    return st.builds(EnqueueRequest, **(drawn | given))


def jobs(**fields: Unpack[JobFields]) -> st.SearchStrategy[Job]:
    """Jobs as a reserve gives them: their attempts and times agree with each other.

    Fields that are not given are drawn from all that a server gives. A ``lease_deadline`` is a
    point on Trio's clock and therefore ``None`` unless it is given.

    Raises:
        TypeError: there is no such field.
    """
    given = as_strategies(fields, JobFields, "jobs")
    drawn: dict[str, st.SearchStrategy[Any]] = {
        "id": st.uuids(version=4).map(str),
        "queue": _queue_names(),
        "job_type": texts(max_bytes=LIMITS.max_job_type_bytes),
        "payload": payloads(allow_none=True),
        "priority": st.integers(0, 9),
        "enqueued_at": _spans(365 * _DAY).map(_SOME_DAY.__add__),
        "custom": custom_maps(),
        "trace_context": st.none() | trace_contexts(),
        "lease_deadline": st.none(),
        "worker_id": st.just(_WORKER_ID),
        "lease_duration": st.just(30.0) | st.integers(1, 300).map(float),
    }
    dependent = {name: given.pop(name) for name in _DEPENDENT if name in given}
    return _jobs(st.fixed_dictionaries(drawn | given), dependent)


@st.composite
def _jobs(
    draw: st.DrawFn,
    independent: st.SearchStrategy[dict[str, Any]],
    given: dict[str, st.SearchStrategy[Any]],
) -> Job:
    """A job of independent fields, and those that depend on them or on each other."""
    job = draw(independent)
    ceiling = LIMITS.max_attempts_ceiling
    attempt = draw(given["attempt"]) if "attempt" in given else None
    if "max_attempts" in given:
        max_attempts = draw(given["max_attempts"])
    else:
        least = max(attempt or 1, 1)
        usual = st.just(max(least, _USUAL_ATTEMPTS))
        max_attempts = draw(usual | st.integers(least, max(least, ceiling)))
    if attempt is None:
        attempt = draw(st.integers(1, max_attempts))
    ready_at = job["enqueued_at"]
    scheduled_at = draw(given.get("scheduled_at", st.none() | _spans(28 * _DAY)))
    if isinstance(scheduled_at, timedelta):
        scheduled_at = ready_at + scheduled_at
    if scheduled_at is not None:
        ready_at = max(ready_at, scheduled_at)
    if "lease_expires_at" in given:
        expires_at = draw(given["lease_expires_at"])
    else:
        granted = timedelta(seconds=job["lease_duration"] or 30.0)
        expires_at = ready_at + draw(_spans(_DAY)) + granted
    return Job(
        attempt=attempt,
        max_attempts=max_attempts,
        scheduled_at=scheduled_at,
        lease_expires_at=expires_at,
        **job,
    )


def _queue_names() -> st.SearchStrategy[str]:
    allowed = st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters="/")
    names = texts(max_bytes=LIMITS.max_queue_name_bytes, alphabet=allowed)
    return names.filter(lambda name: name not in (".", ".."))


def _spans(longest: timedelta) -> st.SearchStrategy[timedelta]:
    """Spans of whole milliseconds: a server knows no others."""
    count = longest // timedelta(milliseconds=1)
    return st.integers(0, count).map(lambda number: timedelta(milliseconds=number))
