"""The rules of the queue once more, in the most naive way: a list of jobs and a loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from sepp_trio.broker.config import BrokerConfig
from sepp_trio.broker.engine import Cause
from sepp_trio.broker.retry_delay import policy_delay_ms
from sepp_trio.wire import records


@dataclass(eq=False)
class ModelJob:
    """A job, numbered in the order of enqueueing. ``until`` is when its schedule or lease ends."""

    id: str
    number: int
    queue: str
    priority: int
    enqueued_at: int
    max_attempts: int
    attempt: int = 1
    place: Literal["ready", "scheduled", "leased", "dead", "gone"] = "ready"
    until: int = 0
    end: tuple[int, int, int, str | None] = field(default=(0, 0, 0, None))


class Refused(Exception):
    """The call is refused with this status."""


class Model:
    """What the engine should do."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self.jobs: list[ModelJob] = []
        self.keys: dict[tuple[str, str], tuple[str, int]] = {}

    def live(self, queue: str) -> int:
        """Jobs that count towards the cap."""
        return sum(
            job.queue == queue and job.place in ("ready", "scheduled", "leased")
            for job in self.jobs
        )

    def tick(self, now: int) -> None:
        """Let everything lapse that has lapsed by now, in the order of a sweep."""
        for job in self.jobs:
            if job.place == "scheduled" and job.until <= now:
                job.place = "ready"
        for job in self.jobs:
            if job.place == "leased" and job.until <= now:
                if job.attempt < job.max_attempts:
                    job.place, job.attempt = "ready", job.attempt + 1
                else:
                    self._give_up(job, Cause.LEASE_EXPIRED, None, now)
        self.keys = {key: value for key, value in self.keys.items() if value[1] > now}
        retention = self.config.storage.dead_letter_retention_ms
        for job in self.jobs:
            if job.place == "dead" and retention and job.end[0] <= now - retention:
                job.place = "gone"

    def _give_up(self, job: ModelJob, cause: int, reason: str | None, now: int) -> None:
        kept = self.config.storage.dead_letter_retention_ms > 0
        job.place = "dead" if kept else "gone"
        job.end = (now, job.number, cause, reason)

    def known(self, one: records.EnqueueRequest) -> str | None:
        """The job that has the key."""
        found = self.keys.get((one.queue, one.idempotency_key or ""))
        return found[0] if found is not None and one.idempotency_key is not None else None

    def has_room(self, one: records.EnqueueRequest, more: int = 1) -> bool:
        """Whether so many jobs more fit."""
        cap = self.config.settings_of(one.queue).max_queue_depth
        return cap is None or self.live(one.queue) + more <= cap

    def insert(self, one: records.EnqueueRequest, job_id: str, now: int) -> None:
        """Take the id that the engine has given."""
        settings = self.config.settings_of(one.queue)
        job = ModelJob(
            job_id,
            len(self.jobs),
            one.queue,
            settings.default_priority if one.priority is None else one.priority,
            now,
            min(one.max_attempts or settings.default_max_attempts, settings.max_attempts_ceiling),
        )
        if one.scheduled_at is not None:
            due = one.scheduled_at[0] * 1000 + one.scheduled_at[1] // 1_000_000
            if due > now:
                job.place, job.until = "scheduled", due
        self.jobs.append(job)
        if one.idempotency_key is not None:
            self.keys[one.queue, one.idempotency_key] = (job_id, now + settings.dedup_window_ms)

    def reserve(self, queues: list[str], lease: int, limit: int, now: int) -> list[ModelJob]:
        """The jobs leased, in order."""
        lease = min([lease, *(self.config.settings_of(q).max_lease_duration_ms for q in queues)])
        taken: list[ModelJob] = []
        for queue in queues:
            ready = [job for job in self.jobs if job.queue == queue and job.place == "ready"]
            ready.sort(key=lambda job: (-job.priority, job.enqueued_at, job.number))
            for job in ready[: limit - len(taken)]:
                job.place, job.until = "leased", now + lease
                taken.append(job)
        return taken

    def held(self, job_id: str, attempt: int) -> ModelJob:
        """The job of a lease."""
        for job in self.jobs:
            if job.id == job_id and job.place == "leased":
                if job.attempt != attempt:
                    raise Refused("FAILED_PRECONDITION")
                return job
        raise Refused("NOT_FOUND")

    def nack(
        self, job: ModelJob, key: bytes, now: int, *, delay: int | None, dead: bool, reason: Any
    ) -> bool:
        """Whether it is a dead letter now."""
        if dead or job.attempt >= job.max_attempts:
            self._give_up(job, Cause.REJECTED if dead else Cause.ATTEMPTS_EXHAUSTED, reason, now)
            return True
        settings = self.config.settings_of(job.queue)
        if delay is None:
            delay = policy_delay_ms(settings, key, job.attempt)
        delay = min(delay, settings.max_schedule_horizon_ms)
        job.attempt += 1
        job.place, job.until = ("scheduled", now + delay) if delay else ("ready", 0)
        return False

    def drain(self, queue: str | None, limit: int) -> list[ModelJob]:
        """The dead letters, oldest first."""
        dead = [job for job in self.jobs if job.place == "dead" and queue in (None, job.queue)]
        dead.sort(key=lambda job: job.end)
        for job in dead[:limit]:
            job.place = "gone"
        return dead[:limit]
