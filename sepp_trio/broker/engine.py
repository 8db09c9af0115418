"""The rules of the queue: an operation and the time in, its reply out.

Nothing here waits, reads a clock or knows of connections. The caller runs each method inside a
transaction of the store, after :meth:`Engine.sweep` if that is due, and asks afterwards which
queues :attr:`Engine.woken` names: they have jobs that were not ready before.

The closing of queues (rejection ``queue_closing``) belongs to the real server's administration,
which is not built here.
"""

from __future__ import annotations

import sys
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias

from grpclib.const import Status
from grpclib.exceptions import GRPCError

from sepp_trio.wire import decoder_of, encode_custom, encode_trace_context, encoder_of, records

from ._changes import Change
from ._time import NEVER, after, duration_ms, timestamp_ms, to_wire
from .config import BrokerConfig, QueueSettings
from .retry_delay import policy_delay_ms
from .store import DeadJob, Store, StoredJob
from .validation import ReservePlan

# What passed the checks, or why it did not.
CheckedJob: TypeAlias = records.EnqueueRequest | records.JobRejection

# So that calls never wait long for a sweep; what is left over is swept with the next batch.
_SWEEP_AT_ONCE: Final = 1000
_ANY_SIZE: Final = sys.maxsize


class Cause(IntEnum):
    """Why a job was given up, by the contract's numbers."""

    ATTEMPTS_EXHAUSTED = 1
    REJECTED = 2
    LEASE_EXPIRED = 3


class Lease(NamedTuple):
    """A job handed out: what is needed to take it back, and its message for the worker."""

    job_id: bytes
    attempt: int
    message: bytes


class Engine:
    """The state machine over one store."""

    def __init__(
        self,
        store: Store,
        config: BrokerConfig,
        *,
        new_id: Callable[[], uuid.UUID] = uuid.uuid4,
    ) -> None:
        self._store = store
        self._config = config
        self._new_id = new_id
        self._encode_job = encoder_of(records.Job)
        self._decode_job = decoder_of(records.Job)
        self._encode_dead = encoder_of(records.DeadLetterRecord)
        self.woken: set[str] = set()
        # When a sweep may find something, never too late; what has lapsed while the broker was
        # down is swept first.
        self.due_at = 0
        # What this transaction has done, if somebody wants to know.
        self.changes: list[Change] | None = None

    # ---- Enqueue ----

    def enqueue_batch(self, jobs: Sequence[CheckedJob], now: int) -> records.EnqueueBatchResponse:
        """Store each job that can be; the others are rejected one by one."""
        return records.EnqueueBatchResponse([self._enqueue_one(job, now) for job in jobs])

    def _enqueue_one(self, job: CheckedJob, now: int) -> records.JobResult:
        if isinstance(job, records.JobRejection):
            return records.JobResult(rejection=job)
        known = self._known(job, now)
        if known is not None:
            return records.JobResult(success=known)
        settings = self._config.settings_of(job.queue)
        cap = settings.max_queue_depth
        if cap is not None and self._store.depth(job.queue) >= cap:
            return records.JobResult(rejection=_queue_full(job.queue, cap))
        return records.JobResult(success=self._insert(job, settings, now))

    def enqueue_atomic(self, jobs: Sequence[CheckedJob], now: int) -> records.EnqueueAtomicResponse:
        """Store all jobs or none."""
        refused = {i: job for i, job in enumerate(jobs) if isinstance(job, records.JobRejection)}
        accepted = [job for job in jobs if isinstance(job, records.EnqueueRequest)]
        if not refused:
            refused = self._over_capacity(accepted)
        if refused:
            errors = [records.JobValidationError(i, refused[i]) for i in sorted(refused)]
            return records.EnqueueAtomicResponse(rejection=records.BatchValidationFailure(errors))
        responses = [
            self._known(job, now) or self._insert(job, self._config.settings_of(job.queue), now)
            for job in accepted
        ]
        return records.EnqueueAtomicResponse(success=records.EnqueueAtomicSuccess(responses))

    def _over_capacity(
        self, jobs: Sequence[records.EnqueueRequest]
    ) -> dict[int, records.JobRejection]:
        """Jobs for queues that cannot hold the batch; a known key counts as a new job."""
        full = {}
        for queue, count in Counter(job.queue for job in jobs).items():
            cap = self._config.settings_of(queue).max_queue_depth
            if cap is not None and self._store.depth(queue) + count > cap:
                full[queue] = _queue_full(queue, cap)
        return {i: full[job.queue] for i, job in enumerate(jobs) if job.queue in full}

    def _known(self, job: records.EnqueueRequest, now: int) -> records.EnqueueResponse | None:
        if job.idempotency_key is None:
            return None
        job_id = self._store.job_with_key(job.queue, job.idempotency_key, now)
        if job_id is None:
            return None
        return records.EnqueueResponse(str(uuid.UUID(bytes=job_id)), deduplicated=True)

    def _insert(
        self, job: records.EnqueueRequest, settings: QueueSettings, now: int
    ) -> records.EnqueueResponse:
        new_id = self._new_id()
        text = str(new_id)
        priority = settings.default_priority if job.priority is None else job.priority
        max_attempts = min(
            job.max_attempts or settings.default_max_attempts, settings.max_attempts_ceiling
        )
        # All of the delivered message that never changes; deliveries append the rest.
        body = self._encode_job(
            records.Job(
                id=text,
                job_type=job.job_type,
                payload=job.payload,
                priority=priority,
                trace_context=encode_trace_context(job.trace_context),
                enqueued_at=to_wire(now),
                max_attempts=max_attempts,
                custom=encode_custom(job.custom),
                scheduled_at=job.scheduled_at,
                queue=job.queue,
            )
        )
        stored = StoredJob(
            id=new_id.bytes,
            seq=self._store.add_job(job.queue, body),
            queue=job.queue,
            rank=9 - priority,
            enqueued_at=now,
            attempt=1,
            max_attempts=max_attempts,
        )
        if job.idempotency_key is not None:
            deadline = after(now, settings.dedup_window_ms)
            self._store.set_key(job.queue, job.idempotency_key, new_id.bytes, deadline)
            self._due(deadline)
        due = now if job.scheduled_at is None else timestamp_ms(job.scheduled_at)
        if self.changes is not None:
            self.changes.append(Change("enqueued", stored.id, 1, max(due, now), body=body))
        self._put(stored, due, now)
        return records.EnqueueResponse(text)

    def _put(self, job: StoredJob, due: int, now: int) -> None:
        """Make the job ready, now or when it is due."""
        if due > now:
            self._store.add_scheduled(job, due)
            self._due(due)
        else:
            self._store.add_ready(job)
            self.woken.add(job.queue)

    # ---- Reserve ----

    def reserve(self, plan: ReservePlan, now: int, size: int = _ANY_SIZE) -> list[Lease]:
        """Lease what is ready, queue by queue in the order given; may be nothing. Messages of no
        more than ``size`` bytes, but one job at least."""
        expires_at = after(now, plan.lease_ms)
        leases: list[Lease] = []
        suffixes: dict[int, bytes] = {}
        for queue in plan.queues:
            room = plan.max_jobs - len(leases)
            if not room or size <= 0:
                break
            for job, body in self._store.lease(queue, room, expires_at, size):
                size -= len(body)
                suffix = suffixes.get(job.attempt)
                if suffix is None:
                    suffix = suffixes[job.attempt] = self._encode_job(
                        records.Job(attempt=job.attempt, lease_expires_at=to_wire(expires_at))
                    )
                # Two halves of a message make the whole when they are put together.
                leases.append(Lease(job.id, job.attempt, body + suffix))
                if self.changes is not None:
                    self.changes.append(
                        Change("leased", job.id, job.attempt, expires_at, plan.worker_id)
                    )
        if leases:
            self._due(expires_at)
        return leases

    def give_back(self, leases: Sequence[Lease], now: int) -> None:
        """Undo leases that nobody has seen: ready again, with the same attempt number. Those that
        have ended meanwhile are left alone."""
        for lease in leases:
            job = self._store.leased(lease.job_id, now)
            if job is not None and job.attempt == lease.attempt:
                self._store.end_lease(job.id)
                self._store.add_ready(job)
                self.woken.add(job.queue)
                if self.changes is not None:
                    self.changes.append(Change("given back", job.id, job.attempt))

    # ---- Ack, nack, extend ----

    def ack(self, request: records.AckRequest, now: int) -> records.AckResponse:
        """The job is done.

        :raises GRPCError: NOT_FOUND or FAILED_PRECONDITION.
        """
        job = self._held(request, now)
        self._store.end_lease(job.id)
        self._store.remove(job)
        if self.changes is not None:
            self.changes.append(Change("acked", job.id, job.attempt, worker_id=request.worker_id))
        return records.AckResponse(request.job_id)

    def nack(self, request: records.NackRequest, now: int) -> records.NackResponse:
        """The job failed: again at once, again later, or never again.

        :raises GRPCError: NOT_FOUND or FAILED_PRECONDITION.
        """
        job = self._held(request, now)
        self._store.end_lease(job.id)
        retry = request.retry
        rejected = retry is not None and retry.dead_letter is not None
        if rejected or job.attempt >= job.max_attempts:
            cause = Cause.REJECTED if rejected else Cause.ATTEMPTS_EXHAUSTED
            self._note_nack(job, request, None)
            self._give_up(job, cause, request.reason, now)
            return records.NackResponse(request.job_id, dead_lettered=True)
        settings = self._config.settings_of(job.queue)
        if retry is not None and retry.delay is not None:
            delay = min(duration_ms(retry.delay), settings.max_schedule_horizon_ms)
        else:
            delay = policy_delay_ms(settings, job.id, job.attempt)
        due = after(now, delay)
        self._note_nack(job, request, due)
        self._put(job._replace(attempt=job.attempt + 1), due, now)
        return records.NackResponse(request.job_id)

    def _note_nack(self, job: StoredJob, request: records.NackRequest, due: int | None) -> None:
        if self.changes is not None:
            self.changes.append(
                Change(
                    "nacked",
                    job.id,
                    job.attempt,
                    due,
                    worker_id=request.worker_id,
                    reason=request.reason,
                )
            )

    def extend(
        self, request: records.ExtendRequest, lease_ms: int, now: int
    ) -> records.ExtendResponse:
        """The lease ends ``lease_ms`` from now, or as late as the job's queue allows.

        :raises GRPCError: NOT_FOUND or FAILED_PRECONDITION.
        """
        job = self._held(request, now)
        longest = self._config.settings_of(job.queue).max_lease_duration_ms
        expires_at = after(now, min(lease_ms, longest))
        self._store.set_expiry(job.id, expires_at)
        self._due(expires_at)
        if self.changes is not None:
            self.changes.append(
                Change("extended", job.id, job.attempt, expires_at, request.worker_id, lease_ms)
            )
        return records.ExtendResponse(request.job_id, to_wire(expires_at))

    def _held(
        self, request: records.AckRequest | records.NackRequest | records.ExtendRequest, now: int
    ) -> StoredJob:
        """The job, if the caller's lease is the one that runs."""
        job = None
        # Ids are compared letter by letter, and ours are in lower case.
        if request.job_id == request.job_id.lower():
            job = self._store.leased(uuid.UUID(request.job_id).bytes, now)
        if job is None:
            raise GRPCError(Status.NOT_FOUND, "job not found")
        if job.attempt != request.attempt:
            raise GRPCError(Status.FAILED_PRECONDITION, "attempt mismatch")
        return job

    def end_lease(self, job_id: bytes, attempt: int, now: int) -> bool:
        """Let a lease run out before its time; whether there was such a lease. For tests."""
        job = self._store.leased(job_id, now)
        if job is None or job.attempt != attempt:
            return False
        self._store.end_lease(job.id)
        self._expire(job, now)
        return True

    def clear(self) -> None:
        """Forget all jobs, dead letters and idempotency keys. For tests."""
        self._store.clear()
        if self.changes is not None:
            self.changes.append(Change("cleared", b"", 0))

    # ---- Dead letters ----

    def _give_up(self, job: StoredJob, cause: Cause, reason: str | None, now: int) -> None:
        if self.changes is not None:
            self.changes.append(
                Change("dead-lettered", job.id, job.attempt, cause=cause, reason=reason)
            )
        retention = self._config.storage.dead_letter_retention_ms
        if retention:
            self._store.bury(job, now, cause, reason)
            self._due(after(now, retention))
        else:
            self._store.remove(job)

    def drain_dead_letters(
        self, queue: str | None, limit: int, size: int = _ANY_SIZE
    ) -> records.DrainDeadLettersResponse:
        """Remove and return the oldest dead letters. Messages of no more than ``size`` bytes, but
        one at least."""
        examined = self._config.storage.sweep_limit
        dead = self._store.drain_dead(queue, limit, examined, size)
        return records.DrainDeadLettersResponse(list(map(self._dead_letter, dead)))

    def _dead_letter(self, dead: DeadJob) -> bytes:
        job = self._decode_job(dead.body)
        if self.changes is not None:
            self.changes.append(Change("drained", uuid.UUID(job.id).bytes, dead.final_attempt))
        job.attempt = dead.final_attempt
        job.lease_expires_at = (0, 0)
        return self._encode_dead(
            records.DeadLetterRecord(
                job, dead.cause, to_wire(dead.failed_at), dead.final_attempt, dead.reason
            )
        )

    # ---- Time ----

    def _due(self, at: int) -> None:
        self.due_at = min(self.due_at, at)

    def sweep(self, now: int) -> None:
        """Do what time does: promote, expire, forget. Sets :attr:`due_at` to the next time, which
        is not later than ``now`` if a part was left for the next sweep."""
        store = self._store
        limit = min(self._config.storage.sweep_limit, _SWEEP_AT_ONCE)
        for job in store.take_due(now, limit):
            self._put(job, now, now)
            if self.changes is not None:
                self.changes.append(Change("ready", job.id, job.attempt))
        for job in store.take_expired(now, limit):
            self._expire(job, now)
        store.drop_keys(now, limit)
        retention = self._config.storage.dead_letter_retention_ms
        if retention:
            store.drop_dead(now - retention, limit)
        scheduled, leased, key, dead = store.earliest()
        due = [at for at in (scheduled, leased, key) if at is not None]
        if retention and dead is not None:
            due.append(after(dead, retention))
        self.due_at = min(due, default=NEVER)

    def _expire(self, job: StoredJob, now: int) -> None:
        """A lease has ended, and its row is gone already."""
        if self.changes is not None:
            self.changes.append(Change("expired", job.id, job.attempt))
        if job.attempt < job.max_attempts:
            self._put(job._replace(attempt=job.attempt + 1), now, now)
        else:
            self._give_up(job, Cause.LEASE_EXPIRED, None, now)


def _queue_full(queue: str, limit: int) -> records.JobRejection:
    return records.JobRejection(queue_full=records.QueueFull(queue, limit))
