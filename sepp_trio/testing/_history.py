"""What became of jobs: one history each, as a value, and sequences of them to assert on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, overload

from sepp_trio.broker._changes import ChangeKind
from sepp_trio.types import DeadLetterCause, Payload, Primitive

from ._said import holds

JobState: TypeAlias = Literal["scheduled", "ready", "leased", "acked", "dead letter"]

_SHOWN = 5
"""Jobs in the ``repr`` of a sequence."""


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One step of a job, as the server has committed it. Times are on Trio's clock.

    ``attempt`` is the delivery that it belongs to, or the coming one. ``until`` is the end of
    the lease ("leased", "extended") or when the job is due ("enqueued", "found", "nacked"; ``None``
    after the last attempt), ``seconds`` the time until then by the server's clock. ``asked``
    is the lease that an extend asked for, in seconds; ``reason`` that of a nack, and of a dead
    letter.
    """

    at: float
    kind: ChangeKind
    attempt: int
    worker_id: str | None = None
    until: float | None = None
    seconds: float | None = None
    asked: float | None = None
    reason: str | None = None

    def __str__(self) -> str:
        text = f"{self.at:.3f} {self.kind}, attempt {self.attempt}"
        if self.worker_id is not None:
            text += f", by {self.worker_id}"
        if self.until is not None and self.seconds:
            word = "until" if self.kind in ("leased", "extended") else "due at"
            text += f", {word} {self.until:.3f}"
        if self.reason is not None:
            text += f": {self.reason}"
        return text


@dataclass(frozen=True, slots=True, repr=False)
class JobHistory:
    """A job at one moment, and how it came there.

    ``attempt`` is the number of the delivery that runs, or that comes next; of the last one
    when the job is done. ``lease_deadline`` is on Trio's clock, ``worker_id`` the holder's;
    both are ``None`` unless the job is leased. ``cause`` is that of a dead letter.
    """

    id: str
    queue: str
    job_type: str
    payload: Payload | None = field(hash=False)
    custom: Mapping[str, Primitive] = field(hash=False)
    priority: int
    state: JobState
    attempt: int
    max_attempts: int
    worker_id: str | None
    lease_deadline: float | None
    cause: DeadLetterCause | None
    events: tuple[JobEvent, ...] = field(hash=False)

    @property
    def is_done(self) -> bool:
        """Whether it was acked or given up."""
        return self.state in ("acked", "dead letter")

    @property
    def deliveries(self) -> int:
        """How often it was leased to somebody, apart from leases that were given back unseen."""
        kinds = Counter(event.kind for event in self.events)
        return kinds["leased"] - kinds["given back"]

    @property
    def expiries(self) -> int:
        """How many of its leases have run out."""
        return sum(event.kind == "expired" for event in self.events)

    @property
    def extends(self) -> tuple[JobEvent, ...]:
        """Its extends, of all attempts."""
        return tuple(event for event in self.events if event.kind == "extended")

    @property
    def nack_reasons(self) -> tuple[str, ...]:
        """The reasons of its nacks, of those that gave one."""
        return tuple(
            event.reason
            for event in self.events
            if event.kind == "nacked" and event.reason is not None
        )

    @property
    def enqueued_at(self) -> float:
        """When it was enqueued, or found in the file, on Trio's clock."""
        return self.events[0].at

    @property
    def done_at(self) -> float | None:
        """When it was acked or given up, on Trio's clock."""
        for event in self.events:
            if event.kind in ("acked", "dead-lettered"):
                return event.at
        return None

    def __repr__(self) -> str:
        text = f"<{self.job_type!r} in {self.queue!r}, {self.state}, "
        text += f"attempt {self.attempt}/{self.max_attempts}"
        if self.worker_id is not None:
            text += f", held by {self.worker_id}"
        if self.state == "dead letter" and self.cause is not None:
            text += f", {self.cause.value}"
        reasons = self.nack_reasons
        if reasons and self.state != "acked":
            text += f": {reasons[-1]}"
        return text + ">"

    def __str__(self) -> str:
        """The whole story, a line for each event."""
        return "\n  ".join([f"{self!r} {self.id}", *map(str, self.events)])


class Jobs(Sequence[JobHistory]):
    """Jobs in the order in which they were enqueued; does not change any more.

    The filters give the same kind of sequence. A test asserts on its length, its members, or
    that there are none (an empty one is false).
    """

    __slots__ = ("_jobs",)

    def __init__(self, jobs: Iterable[JobHistory]) -> None:
        self._jobs = tuple(jobs)

    def __len__(self) -> int:
        return len(self._jobs)

    @overload
    def __getitem__(self, index: int) -> JobHistory: ...
    @overload
    def __getitem__(self, index: slice) -> Jobs: ...
    def __getitem__(self, index: int | slice) -> JobHistory | Jobs:
        if isinstance(index, slice):
            return Jobs(self._jobs[index])
        return self._jobs[index]

    def __eq__(self, other: object) -> bool:
        return self._jobs == other._jobs if isinstance(other, Jobs) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._jobs)

    def where(self, predicate: Callable[[JobHistory], object]) -> Jobs:
        """Those for which the predicate holds.

        Raises:
            TypeError: the predicate is async, or has said nothing (``None``).
        """
        return Jobs(job for job in self._jobs if holds(predicate(job), "predicate"))

    def _in_state(self, state: JobState) -> Jobs:
        return Jobs(job for job in self._jobs if job.state == state)

    @property
    def scheduled(self) -> Jobs:
        """Those that wait for their time: of their schedule, or of a retry."""
        return self._in_state("scheduled")

    @property
    def ready(self) -> Jobs:
        """Those that wait for a worker."""
        return self._in_state("ready")

    @property
    def leased(self) -> Jobs:
        """Those that somebody holds."""
        return self._in_state("leased")

    @property
    def acked(self) -> Jobs:
        """Those that are done."""
        return self._in_state("acked")

    @property
    def dead_letters(self) -> Jobs:
        """Those that were given up, also if the server keeps no dead letters."""
        return self._in_state("dead letter")

    @property
    def expired(self) -> Jobs:
        """Those of which a lease has run out, whatever became of them."""
        return Jobs(job for job in self._jobs if job.expiries)

    def __repr__(self) -> str:
        if not self._jobs:
            return "<no jobs>"
        if len(self._jobs) <= _SHOWN:
            return f"<jobs: {', '.join(map(repr, self._jobs))}>"
        counts = Counter(job.state for job in self._jobs)
        return f"<{len(self)} jobs: {', '.join(f'{n} {state}' for state, n in counts.items())}>"

    def __str__(self) -> str:
        """The story of each job."""
        return "\n".join(map(str, self._jobs)) or repr(self)
