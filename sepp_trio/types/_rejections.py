"""Why a server refuses a job: fifteen values, each with a plain-words ``str()``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from ._value import Value


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class JobRejection(Value):
    """Base of all reasons. ``transient`` ones go away by themselves; the others come
    back for the same job on the same configuration."""

    transient: ClassVar[bool] = False


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _OverLimit(JobRejection):
    # A base rather than the same fields six times: making a dataclass takes half a millisecond.
    limit: int
    actual: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class UnknownQueue(JobRejection):
    """The server is strict and does not declare this queue."""

    queue: str

    def __str__(self) -> str:
        return f"queue {self.queue!r} is not declared on this server"


class PayloadTooLarge(_OverLimit):
    """Bytes of ``payload.data`` over the queue's limit."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"payload of {self.actual} bytes is over the limit of {self.limit}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EncodingNotAllowed(JobRejection):
    """The payload's label is not on the allow-list."""

    encoding: str
    allowed: tuple[str, ...]

    def __str__(self) -> str:
        allowed = ", ".join(map(repr, self.allowed)) or "none"
        return f"payload encoding {self.encoding!r} is not allowed (allowed: {allowed})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class JobTypeNotAllowed(JobRejection):
    """The queue takes only the job types it declares."""

    job_type: str
    allowed: tuple[str, ...]

    def __str__(self) -> str:
        allowed = ", ".join(map(repr, self.allowed)) or "none"
        return f"job type {self.job_type!r} is not allowed on this queue (allowed: {allowed})"


class CustomEntriesTooMany(_OverLimit):
    """Too many entries in the custom map."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"{self.actual} custom entries are over the limit of {self.limit}"


class CustomMapTooLarge(_OverLimit):
    """Bytes of all keys and values of the custom map over the limit."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"custom map of {self.actual} bytes is over the limit of {self.limit}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class CustomKeyTooLong(JobRejection):
    """UTF-8 bytes of one key of the custom map over the limit."""

    key: str
    limit: int
    actual: int

    def __str__(self) -> str:
        return f"custom key {self.key!r} of {self.actual} bytes is over the limit of {self.limit}"


class QueueNameTooLong(_OverLimit):
    """UTF-8 bytes of the queue's name over the limit."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"queue name of {self.actual} bytes is over the limit of {self.limit}"


class JobTypeNameTooLong(_OverLimit):
    """UTF-8 bytes of the job type over the limit."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"job type of {self.actual} bytes is over the limit of {self.limit}"


class IdempotencyKeyTooLong(_OverLimit):
    """UTF-8 bytes of the idempotency key over the limit."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"idempotency key of {self.actual} bytes is over the limit of {self.limit}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ScheduledTooFar(JobRejection):
    """``scheduled_at`` beyond the horizon (seconds); ``actual`` is ``None`` if no
    ``datetime`` can hold what the server echoed."""

    horizon: float
    actual: datetime | None

    def __str__(self) -> str:
        when = "that time" if self.actual is None else self.actual.isoformat()
        return f"scheduled_at {when} is more than {self.horizon:.12g} s ahead"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class InvalidRequest(JobRejection):
    """The job breaks a structural rule of the contract."""

    message: str

    def __str__(self) -> str:
        return f"invalid job: {self.message}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class QueueFull(JobRejection):
    """The queue holds as many live jobs as it may."""

    transient: ClassVar[bool] = True
    queue: str
    limit: int

    def __str__(self) -> str:
        return f"queue {self.queue!r} is full ({self.limit} jobs)"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class QueueClosing(JobRejection):
    """The queue is being deleted right now."""

    transient: ClassVar[bool] = True
    queue: str

    def __str__(self) -> str:
        return f"queue {self.queue!r} is being deleted"


class UnknownRejection(JobRejection):
    """A reason that this version does not know, from a newer server."""

    __slots__ = ()

    def __str__(self) -> str:
        return "rejected for a reason that this client does not know (newer server?)"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class JobValidationError(Value):
    """One refused job of an atomic batch, by its position in the request."""

    index: int
    rejection: JobRejection

    def __str__(self) -> str:
        return f"job {self.index}: {self.rejection}"
