"""A leased job, how to reserve one, and how to give it back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, Literal, Protocol

from ._checks import Duration, integer, queue_name, seconds, text
from ._payload import Payload, Primitive, TraceContext
from ._value import Value


class LeasedJob(Protocol):
    """What ack, nack, extend and hold need of a job: a ``Job``, a ``JobCtx``, or yours."""

    @property
    def id(self) -> str:
        """The job's id."""

    @property
    def attempt(self) -> int:
        """The delivery that is meant: 1 for the first."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ReserveOptions(Value):
    """What to reserve.

    Args:
        queues: Polled strictly in this order: a busy first queue starves later ones.
        lease_duration: Seconds; the server grants at most its own limit.
        wait_timeout: Seconds that the server waits for a job when there is none; 0 asks once.
        worker_id: Appears in the server's traces only.
        max_jobs: The server gives one job when ``None``.

    Raises:
        TypeError, ValueError: naming the field and the limit.
    """

    queues: Sequence[str]
    lease_duration: Duration
    wait_timeout: Duration = 30.0
    worker_id: str | None = None
    max_jobs: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "queues", checked_queues(self.queues))
        object.__setattr__(self, "lease_duration", seconds(self.lease_duration, "lease_duration"))
        object.__setattr__(
            self, "wait_timeout", seconds(self.wait_timeout, "wait_timeout", zero=True)
        )
        if self.worker_id is not None:
            text(self.worker_id, "worker_id")
        if self.max_jobs is not None:
            integer(self.max_jobs, "max_jobs", 1)


def checked_queues(queues: Sequence[str]) -> tuple[str, ...]:
    """The queue names as a tuple; refuses none at all, a bare string and bad names."""
    if isinstance(queues, (str, bytes)) or not isinstance(queues, Iterable):
        raise TypeError(f"queues must be a sequence of names, not one {type(queues).__name__}")
    names = tuple(queues)
    if not names:
        raise ValueError("queues must name at least one queue")
    for index, name in enumerate(names):
        queue_name(name, f"queues at index {index}")
    return names


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Job(Value):
    """A job under a lease, flat and frozen.

    ``lease_expires_at`` is the server's clock at delivery; ``lease_deadline`` is the
    same instant on Trio's clock (``trio.current_time()``), never later than the
    server's, ``None`` if the job did not come from a reserve. ``worker_id`` is that of
    the reserve; ack, nack and extend send it along, for the server's traces.
    ``lease_duration`` is what the reserve asked for, in seconds; the heartbeat of ``hold``
    asks for as much.
    """

    id: str
    queue: str
    job_type: str
    payload: Payload | None
    priority: int
    attempt: int
    max_attempts: int
    enqueued_at: datetime
    lease_expires_at: datetime
    scheduled_at: datetime | None = None
    custom: Mapping[str, Primitive] = field(default_factory=dict, hash=False)
    trace_context: TraceContext | None = None
    lease_deadline: float | None = field(default=None, compare=False)
    worker_id: str | None = field(default=None, compare=False)
    lease_duration: float | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"job {self.id} ({self.job_type}, attempt {self.attempt}/{self.max_attempts})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RetryDirective(Value):
    """What becomes of a job that failed: ``DEFAULT`` (the queue's retry policy),
    ``after(delay)`` or ``DEAD_LETTER``."""

    kind: Literal["default", "after", "dead_letter"]
    delay: float | None = None

    DEFAULT: ClassVar[RetryDirective]
    DEAD_LETTER: ClassVar[RetryDirective]

    def __post_init__(self) -> None:
        if self.kind not in ("default", "after", "dead_letter"):
            raise ValueError(f"kind must be default, after or dead_letter, not {self.kind!r}")
        if self.kind == "after":
            if self.delay is None:
                raise ValueError("delay must be given for kind 'after'")
            object.__setattr__(self, "delay", seconds(self.delay, "delay", zero=True))
        elif self.delay is not None:
            raise ValueError(f"delay has no use with kind {self.kind!r}")

    @classmethod
    def after(cls, delay: Duration) -> RetryDirective:
        """Deliver again after ``delay`` seconds (0: at once); replaces the queue's policy."""
        return cls("after", seconds(delay, "delay", zero=True))


RetryDirective.DEFAULT = RetryDirective("default")
RetryDirective.DEAD_LETTER = RetryDirective("dead_letter")
