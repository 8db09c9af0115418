"""What really happened: the broker's own account of every job, and what handlers and wires saw."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import trio

from sepp_trio.broker import BrokerConfig
from sepp_trio.broker.engine import Cause, CheckedJob, Engine, Lease
from sepp_trio.broker.store import Store, StoredJob
from sepp_trio.broker.validation import ReservePlan
from sepp_trio.testing import FragileServer
from sepp_trio.testing._faults import CallFault
from sepp_trio.testing._proxy import THIEF
from sepp_trio.wire import encoder_of, records


@dataclass
class HandlerRun:
    """One call of a handler."""

    job_id: str
    attempt: int
    worker: str
    kind: str
    began: float
    ended: float | None = None
    # When a Cancelled came out of a checkpoint first, and why, if the worker did it.
    cancelled: float | None = None
    reason: str | None = None
    # The handler is one that does not let itself be cancelled.
    stubborn: bool = False
    # "returned", "acked", "permanent", "failed" or "cancelled".
    outcome: str = ""


@dataclass
class Delivery:
    """One lease of one job, from the broker's side, with what was seen of it elsewhere."""

    job_id: str
    attempt: int
    began: float
    # The end of the lease on Trio's clock, as far as its holder may count on it.
    promised: float
    length: float
    ended: float | None = None
    how: str = ""
    by: str = ""
    stolen: float | None = None
    jumped: bool = False
    # Who got it, and when; nobody if the answer to the reserve never arrived.
    worker: str | None = None
    arrived: float | None = None
    # Faults that hit calls for this delivery, and when.
    call_faults: list[tuple[float, CallFault]] = field(default_factory=list)
    # The answer to the reserve was lost by a fault.
    lost: bool = False
    # When its holder was told that the job is not its own any more, or that it is settled.
    told: float | None = None
    # An ack or nack was sent: it may be repeated whatever a heartbeat is told meanwhile.
    settling: bool = False
    # Its worker returned, and the broker still counted it as leased.
    left_by_return: bool = False
    runs: list[HandlerRun] = field(default_factory=list)


@dataclass
class JobStory:
    """A job from enqueue to end."""

    job_id: str
    number: int
    max_attempts: int
    # "acked" or the cause of the dead letter.
    end: str = ""
    ended_at: float | None = None
    deliveries: dict[int, Delivery] = field(default_factory=dict)
    events: list[tuple[float, str]] = field(default_factory=list)


class Truth:
    """The stories of all jobs of one simulation."""

    def __init__(self, seed: int) -> None:
        self.jobs: dict[str, JobStory] = {}
        self.by_number: dict[int, JobStory] = {}
        self.counts: Counter[str] = Counter()
        self.open = 0
        self.changed = trio.Event()
        self.malformed: set[str] = set()
        self._dice = Random(f"ids {seed}")

    def new_id(self) -> uuid.UUID:
        """A job id that the seed decides."""
        return uuid.UUID(int=self._dice.getrandbits(128), version=4)

    def note(self, job_id: str, text: str) -> None:
        """Write something into a job's story."""
        story = self.jobs.get(job_id)
        if story is not None:
            story.events.append((trio.current_time(), text))

    def delivery(self, job_id: str, attempt: int) -> Delivery | None:
        """A delivery, if there was such a one."""
        story = self.jobs.get(job_id)
        return None if story is None else story.deliveries.get(attempt)

    def enqueued(self, job_id: str, number: int, max_attempts: int) -> None:
        """The broker has taken in a job."""
        story = JobStory(job_id, number, max_attempts)
        self.jobs[job_id] = self.by_number[number] = story
        self.open += 1
        self.note(job_id, f"enqueued, no. {number}")

    def over(self, job_id: str, end: str) -> None:
        """The broker is done with a job."""
        story = self.jobs[job_id]
        assert not story.end, "a job ends once"
        story.end, story.ended_at = end, trio.current_time()
        self.open -= 1
        self.counts[f"job {end}"] += 1
        self.changed.set()

    def end(self, job_id: str, attempt: int, how: str, by: str = "") -> None:
        """A lease has ended."""
        delivery = self.jobs[job_id].deliveries[attempt]
        delivery.ended, delivery.how, delivery.by = trio.current_time(), how, by
        self.counts[f"lease {how}"] += 1
        self.note(job_id, f"broker: attempt {attempt} {how}{f' by {by}' if by else ''}")

    def jumped(self) -> None:
        """The server's clock was set: no holder can know when its lease ends."""
        for story in self.jobs.values():
            if not story.end:
                for delivery in story.deliveries.values():
                    if delivery.ended is None:
                        delivery.jumped = True

    def leased_to(self, worker: str) -> list[Delivery]:
        """What the broker still counts as leased, of what a worker was given."""
        return [
            delivery
            for story in self.jobs.values()
            if not story.end
            for delivery in story.deliveries.values()
            if delivery.worker == worker and delivery.ended is None
        ]


class RecordingEngine(Engine):
    """The engine, writing down what it decides."""

    def __init__(
        self, store: Store, config: BrokerConfig, truth: Truth, server: list[FragileServer]
    ) -> None:
        super().__init__(store, config, new_id=truth.new_id)
        self._truth = truth
        self._servers = server
        self._nacking = False
        self._spoil = encoder_of(records.Job)(records.Job(priority=12))

    def _trio_time(self, at_ms: int) -> float:
        return self._servers[0].clock.trio_time(at_ms)

    def enqueue_batch(self, jobs: Sequence[CheckedJob], now: int) -> records.EnqueueBatchResponse:
        response = super().enqueue_batch(jobs, now)
        for job, result in zip(jobs, response.results, strict=True):
            assert result.success is not None
            assert isinstance(job, records.EnqueueRequest)
            if not result.success.deduplicated:
                assert job.idempotency_key is not None
                number = int(job.idempotency_key)
                self._truth.enqueued(result.success.job_id, number, job.max_attempts or 3)
                if job.job_type == "malformed":
                    self._truth.malformed.add(result.success.job_id)
        return response

    def reserve(self, plan: ReservePlan, now: int, *more: Any) -> list[Lease]:
        leases = super().reserve(plan, now, *more)
        end = self._trio_time(now + plan.lease_ms)
        for index, lease in enumerate(leases):
            job_id = str(uuid.UUID(bytes=lease.job_id))
            story = self._truth.jobs[job_id]
            story.deliveries[lease.attempt] = Delivery(
                job_id, lease.attempt, trio.current_time(), end, plan.lease_ms / 1000
            )
            self._truth.note(job_id, f"broker: attempt {lease.attempt} leased until {end:.3f}")
            if job_id in self._truth.malformed:
                leases[index] = lease._replace(message=lease.message + self._spoil)
        return leases

    def give_back(self, leases: Sequence[Lease], now: int) -> None:
        for lease in leases:
            job = self._store.leased(lease.job_id, now)
            if job is not None and job.attempt == lease.attempt:
                self._truth.end(str(uuid.UUID(bytes=lease.job_id)), lease.attempt, "given back")
        super().give_back(leases, now)

    def ack(self, request: records.AckRequest, now: int) -> records.AckResponse:
        response = super().ack(request, now)
        by = request.worker_id or "?"
        self._truth.end(request.job_id, request.attempt, "acked", by)
        if by == THIEF:
            self._truth.jobs[request.job_id].deliveries[
                request.attempt
            ].stolen = trio.current_time()
        self._truth.over(request.job_id, "acked")
        return response

    def nack(self, request: records.NackRequest, now: int) -> records.NackResponse:
        story = self._truth.jobs.get(request.job_id)
        self._nacking = True
        try:
            response = super().nack(request, now)
        finally:
            self._nacking = False
        assert story is not None
        if story.end:  # _give_up was here before
            story.deliveries[request.attempt].by = request.worker_id or "?"
        else:
            self._truth.end(request.job_id, request.attempt, "nacked", request.worker_id or "?")
        self._truth.note(request.job_id, f"nack: {request.reason}")
        return response

    def extend(
        self, request: records.ExtendRequest, lease_ms: int, now: int
    ) -> records.ExtendResponse:
        response = super().extend(request, lease_ms, now)
        delivery = self._truth.jobs[request.job_id].deliveries[request.attempt]
        if request.worker_id == THIEF:
            delivery.stolen = trio.current_time()
            self._truth.note(request.job_id, f"broker: attempt {request.attempt} stolen")
        else:
            delivery.promised = self._trio_time(now + lease_ms)
            delivery.length = lease_ms / 1000
            self._truth.counts["extends"] += 1
            self._truth.note(
                request.job_id,
                f"broker: attempt {request.attempt} extended to {delivery.promised:.3f}",
            )
        return response

    def _give_up(self, job: StoredJob, cause: Cause, reason: str | None, now: int) -> None:
        super()._give_up(job, cause, reason, now)
        job_id = str(uuid.UUID(bytes=job.id))
        how = "expired" if cause is Cause.LEASE_EXPIRED else "nacked"
        self._truth.end(job_id, job.attempt, how)
        self._truth.over(job_id, cause.name)
        self._truth.note(job_id, f"broker: dead letter, {cause.name}")

    def _put(self, job: StoredJob, due: int, now: int) -> None:
        # A job comes back with the next attempt when it was nacked or its lease has ended.
        job_id = str(uuid.UUID(bytes=job.id))
        last = self._truth.delivery(job_id, job.attempt - 1)
        if last is not None and last.ended is None and not self._nacking:
            self._truth.end(job_id, last.attempt, "expired")
        super()._put(job, due, now)
