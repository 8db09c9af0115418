"""Keeps the history of every job that a broker has had, from what the broker commits."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Final

import trio

from sepp_trio.broker._changes import Change
from sepp_trio.broker._clock import BrokerClock
from sepp_trio.broker.store import Store
from sepp_trio.types import DeadLetterCause, Duration
from sepp_trio.types._checks import text
from sepp_trio.wire import convert, custom_of, decoder_of, records

from ._history import JobEvent, JobHistory, Jobs, JobState
from ._limits import limit_of
from ._said import holds

_DONE: Final = ("acked", "dead letter")


class _Record:
    """One job, as far as it has come; its snapshot is made when somebody asks."""

    __slots__ = (
        "attempt",
        "cause",
        "events",
        "job",
        "lease_deadline",
        "snapshot",
        "state",
        "worker_id",
    )

    def __init__(self, job: records.Job, state: JobState, attempt: int) -> None:
        self.job = job
        self.state = state
        self.attempt = attempt
        self.worker_id: str | None = None
        self.lease_deadline: float | None = None
        self.cause: DeadLetterCause | None = None
        self.events: list[JobEvent] = []
        self.snapshot: JobHistory | None = None

    def history(self) -> JobHistory:
        if self.snapshot is None:
            job = self.job
            self.snapshot = JobHistory(
                id=job.id,
                queue=job.queue,
                job_type=job.job_type,
                payload=convert.payload_from_wire(job.payload),
                custom=convert.custom_from_wire(custom_of(job)),
                priority=job.priority,
                state=self.state,
                attempt=self.attempt,
                max_attempts=job.max_attempts,
                worker_id=self.worker_id,
                lease_deadline=self.lease_deadline,
                cause=self.cause,
                events=tuple(self.events),
            )
        return self.snapshot

    def hold(self, worker_id: str | None, until: float | None) -> None:
        self.worker_id, self.lease_deadline = worker_id, until

    def apply(self, change: Change, event: JobEvent) -> None:
        """Take the step."""
        self.events.append(event)
        self.snapshot = None
        match change.kind:
            case "ready":
                self.state = "ready"
            case "leased":
                self.state, self.attempt = "leased", change.attempt
                self.hold(event.worker_id, event.until)
            case "extended":
                self.lease_deadline = event.until
            case "given back":
                self.state = "ready"
                self.hold(None, None)
            case "acked":
                self.state = "acked"
                self.hold(None, None)
            case "nacked" | "expired":
                # A dead letter's own change comes right after this one.
                self.state = "scheduled" if event.seconds else "ready"
                self.attempt = change.attempt + 1
                self.hold(None, None)
            case "dead-lettered":
                assert change.cause is not None
                self.state, self.attempt = "dead letter", change.attempt
                self.cause = convert.cause_from_wire(change.cause)


class Recorder:
    """The histories of jobs, for tests to read and to wait for.

    Given to :func:`open_fragile_server`, it goes on over the restarts of the server.
    """

    def __init__(self) -> None:
        self._records: dict[bytes, _Record] = {}
        self._open: dict[str, int] = {}
        self._changed = trio.Event()
        self._decode = decoder_of(records.Job)

    # ---- what tests ask ----

    def jobs(self, queue: str | None = None, *, job_type: str | None = None) -> Jobs:
        """All jobs so far, or those of a queue or type, as they are now."""
        if queue is not None:
            text(queue, "queue")
        if job_type is not None:
            text(job_type, "job_type")
        return Jobs(
            record.history()
            for record in self._records.values()
            if (queue is None or record.job.queue == queue)
            and (job_type is None or record.job.job_type == job_type)
        )

    def job(self, job_id: str) -> JobHistory:
        """The job with this id.

        Raises:
            KeyError: there was none.
        """
        record = self._records.get(key_of(job_id))
        if record is None:
            raise KeyError(f"there is no job {job_id}")
        return record.history()

    async def settled(self, queue: str | None = None, *, limit: Duration | None = None) -> None:
        """Wait until no job is scheduled, ready or leased: all were acked or given up; at most
        ``limit`` seconds on Trio's clock. Without it an hour on a ``MockClock``, else a minute.

        A checkpoint. Jobs that come later are no concern of it.

        Raises:
            trio.TooSlowError: the limit is over; tells the story of each job that is open.
        """
        if queue is not None:
            text(queue, "queue")
        within = limit_of(limit)
        with trio.move_on_after(within):
            await trio.lowlevel.checkpoint()
            while self._open.get(queue, 0) if queue is not None else any(self._open.values()):
                await self._changed.wait()
            return
        left = self.jobs(queue).where(lambda job: not job.is_done)
        raise trio.TooSlowError(
            f"within the limit of {within:.12g} s not all jobs were done:\n{left}"
        )

    async def until(
        self,
        predicate: Callable[[Jobs], object],
        queue: str | None = None,
        *,
        limit: Duration | None = None,
    ) -> Jobs:
        """Wait until the predicate holds for the jobs; it is asked at once and after every
        commit of the server. Returns these jobs.

        A checkpoint. The ``limit`` is as for :meth:`settled`.

        Raises:
            TypeError: the predicate is async, or has said nothing (``None``).
            trio.TooSlowError: the limit is over; tells the story of each job.
        """
        if not callable(predicate):
            raise TypeError(f"predicate must be a function, not {type(predicate).__name__}")
        within = limit_of(limit)
        with trio.move_on_after(within):
            await trio.lowlevel.checkpoint()
            while not holds(predicate(jobs := self.jobs(queue)), "predicate"):
                await self._changed.wait()
            return jobs
        raise trio.TooSlowError(
            f"within the limit of {within:.12g} s the predicate did not hold:\n{self.jobs(queue)}"
        )

    # ---- what the broker tells ----

    def load(self, store: Store, now_ms: int, clock: BrokerClock) -> None:
        """Take in what is in a store that is just opened."""
        changes: list[Change] = []
        for place, at, attempt, cause, reason, body in store.contents():
            job_id = uuid.UUID(self._decode(body).id).bytes
            due = at if place == "scheduled" else None
            changes.append(Change("found", job_id, attempt, due, body=body))
            if place == "leased":
                changes.append(Change("leased", job_id, attempt, at))
            elif place == "dead":
                changes.append(Change("dead-lettered", job_id, attempt, cause=cause, reason=reason))
        self.observe(changes, now_ms, clock)

    def observe(self, changes: Sequence[Change], now_ms: int, clock: BrokerClock) -> None:
        """Take in what was committed just now."""
        now = trio.current_time()
        for change in changes:
            if change.kind == "cleared":
                self._records.clear()
                self._open.clear()
                continue
            until = None if change.at is None else clock.trio_time(change.at)
            if change.body is not None:
                job = self._decode(change.body)
                later = change.at is not None and change.at > now_ms
                state: JobState = "scheduled" if later else "ready"
                self._records[change.job_id] = _Record(job, state, change.attempt)
                self._open[job.queue] = self._open.get(job.queue, 0) + 1
            record = self._records[change.job_id]
            was_open = record.state not in _DONE
            event = JobEvent(
                now,
                change.kind,
                change.attempt,
                change.worker_id,
                until,
                None if change.at is None else (change.at - now_ms) / 1000,
                None if change.asked_ms is None else change.asked_ms / 1000,
                change.reason,
            )
            record.apply(change, event)
            if was_open and record.state in _DONE:
                self._open[record.job.queue] -= 1
        changed, self._changed = self._changed, trio.Event()
        changed.set()


def key_of(job_id: str) -> bytes:
    """What the broker calls a job; that of no job if no server gives such ids."""
    try:
        return uuid.UUID(text(job_id, "job_id")).bytes
    except ValueError:
        return b""
