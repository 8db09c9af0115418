"""The engine does what a naive model does, over random operations, in memory and in a file."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sepp_trio.broker.config import QueueConfig
from sepp_trio.wire import records

from .helpers import Rig, config, from_wire, job, ms, status_of
from .model import Model, ModelJob, Refused

QUEUES = ["a", "b", "capped", "picky"]
CONFIG = config(
    QueueConfig("capped", max_queue_depth=3, dedup_window_ms=500),
    QueueConfig(
        "picky",
        max_lease_duration_ms=50,
        max_attempts_ceiling=2,
        default_max_attempts=2,
        default_priority=5,
    ),
    retry_delay_ms=40,
    retry_backoff="exponential",
    max_schedule_horizon_ms=2000,
    storage={"dead_letter_retention_ms": 1500, "dedup_window_ms": 1000},
)

queues = st.sampled_from(QUEUES)
spans = st.one_of(st.sampled_from([0, 1, 50, 100]), st.integers(1, 300))
keys = st.one_of(st.none(), st.sampled_from(["k1", "k2"]))


@st.composite
def new_jobs(draw: st.DrawFn) -> tuple[dict[str, Any], int | None]:
    """The values of a job, and how far from now it is scheduled."""
    values = {
        "queue": draw(queues),
        "priority": draw(st.one_of(st.none(), st.integers(0, 9))),
        "max_attempts": draw(st.one_of(st.none(), st.integers(1, 4))),
        "idempotency_key": draw(keys),
        # Some jobs do not pass the checks.
        "job_type": "" if draw(st.integers(0, 15)) == 0 else "t",
    }
    return values, draw(st.one_of(st.none(), st.none(), st.integers(-100, 2100)))


class EngineAndModel(RuleBasedStateMachine):
    """One operation after the other on both."""

    in_file = False

    @initialize()
    def open(self) -> None:
        self.directory = tempfile.mkdtemp() if self.in_file else None
        self.rig = Rig(CONFIG, self.directory and f"{self.directory}/jobs.db")
        self.model = Model(CONFIG)

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.rig.close()
            if self.directory is not None:
                shutil.rmtree(self.directory)

    def requests(
        self, new: list[tuple[dict[str, Any], int | None]]
    ) -> list[records.EnqueueRequest]:
        now = self.rig.now
        return [
            job(**values, scheduled_at=None if offset is None else ms(now + offset))
            for values, offset in new
        ]

    def passes(self, one: records.EnqueueRequest) -> bool:
        due = from_wire(one.scheduled_at) if one.scheduled_at is not None else 0
        return one.job_type != "" and due <= self.rig.now + 2000

    @rule(new=st.lists(new_jobs(), min_size=1, max_size=4))
    def enqueue(self, new: list[tuple[dict[str, Any], int | None]]) -> None:
        self.model.tick(self.rig.now)
        jobs = self.requests(new)
        for one, result in zip(jobs, self.rig.enqueue(*jobs), strict=True):
            known = self.model.known(one)
            if not self.passes(one):
                assert result.rejection is not None
                assert result.rejection.queue_full is None
            elif known is not None:
                assert result.success == records.EnqueueResponse(known, deduplicated=True)
            elif not self.model.has_room(one):
                assert result.rejection is not None
                assert result.rejection.queue_full == records.QueueFull(one.queue, 3)
            else:
                assert result.success is not None
                assert not result.success.deduplicated
                self.model.insert(one, result.success.job_id, self.rig.now)

    @rule(new=st.lists(new_jobs(), min_size=1, max_size=4))
    def enqueue_atomic(self, new: list[tuple[dict[str, Any], int | None]]) -> None:
        self.model.tick(self.rig.now)
        jobs = self.requests(new)
        answer = self.rig.atomic(*jobs)
        bad = [i for i, one in enumerate(jobs) if not self.passes(one)]
        if not bad:
            bad = [
                i
                for i, one in enumerate(jobs)
                if not self.model.has_room(one, sum(other.queue == one.queue for other in jobs))
            ]
        if bad:
            assert answer.rejection is not None
            assert [error.index for error in answer.rejection.errors] == bad
            return
        assert answer.success is not None
        for one, response in zip(jobs, answer.success.responses, strict=True):
            known = self.model.known(one)
            assert response.deduplicated == (known is not None)
            if known is None:
                self.model.insert(one, response.job_id, self.rig.now)
            else:
                assert response.job_id == known

    @rule(
        names=st.lists(queues, min_size=1, max_size=3, unique=True),
        lease=spans.filter(bool),
        limit=st.integers(1, 4),
    )
    def reserve(self, names: list[str], lease: int, limit: int) -> None:
        self.model.tick(self.rig.now)
        taken = self.rig.reserve(*names, lease=lease, max_jobs=limit)
        expected = self.model.reserve(names, lease, limit, self.rig.now)
        assert [self.seen(one) for one in taken] == [
            (one.id, one.queue, one.attempt, one.max_attempts, one.priority, one.until)
            for one in expected
        ]

    @staticmethod
    def seen(one: records.Job) -> tuple[Any, ...]:
        until = from_wire(one.lease_expires_at)
        return one.id, one.queue, one.attempt, one.max_attempts, one.priority, until

    def pick(self, data: st.DataObject) -> tuple[str, int]:
        """Some job's lease, mostly one that runs."""
        leased = [one for one in self.model.jobs if one.place == "leased"]
        pool = leased if leased and data.draw(st.integers(0, 3)) else self.model.jobs
        one: ModelJob = data.draw(st.sampled_from(pool))
        stale = data.draw(st.integers(0, 7)) == 0
        return one.id, max(1, one.attempt - 1) if stale else one.attempt

    def held(self, job_id: str, attempt: int) -> ModelJob | str:
        self.model.tick(self.rig.now)
        try:
            return self.model.held(job_id, attempt)
        except Refused as refused:
            return str(refused)

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        job_id, attempt = self.pick(data)
        held = self.held(job_id, attempt)
        if isinstance(held, str):
            assert status_of(self.rig.ack, job_id, attempt) == held
        else:
            self.rig.ack(job_id, attempt)
            held.place = "gone"

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data(), delay=st.one_of(st.none(), spans), dead=st.booleans(), reason=keys)
    def nack(self, data: st.DataObject, delay: int | None, dead: bool, reason: str | None) -> None:
        job_id, attempt = self.pick(data)
        held = self.held(job_id, attempt)
        if delay is not None:
            dead = False
        options: dict[str, Any] = {"delay": delay, "dead": dead, "reason": reason}
        if isinstance(held, str):
            assert status_of(self.rig.nack, job_id, attempt, **options) == held
        else:
            key = uuid.UUID(job_id).bytes
            expected = self.model.nack(held, key, self.rig.now, **options)
            assert self.rig.nack(job_id, attempt, **options) == expected

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data(), lease=spans.filter(bool))
    def extend(self, data: st.DataObject, lease: int) -> None:
        job_id, attempt = self.pick(data)
        held = self.held(job_id, attempt)
        if isinstance(held, str):
            assert status_of(self.rig.extend, job_id, attempt, lease) == held
        else:
            longest = CONFIG.settings_of(held.queue).max_lease_duration_ms
            held.until = self.rig.now + min(lease, longest)
            assert self.rig.extend(job_id, attempt, lease) == held.until

    @rule(queue=st.one_of(st.none(), queues), limit=st.integers(1, 3))
    def drain(self, queue: str | None, limit: int) -> None:
        self.model.tick(self.rig.now)
        letters = self.rig.drain(queue, limit)
        assert [
            (one.job.id, from_wire(one.failed_at), one.final_attempt, one.cause, one.last_reason)
            for one in letters
        ] == [
            (one.id, one.end[0], one.attempt, one.end[2], one.end[3])
            for one in self.model.drain(queue, limit)
        ]

    @rule(step=st.one_of(spans, st.integers(300, 2000)))
    def pass_time(self, step: int) -> None:
        # No call comes in between: what lapses at different times is swept at once.
        self.rig.now += step

    @precondition(lambda self: self.in_file)
    @rule()
    def reopen(self) -> None:
        self.rig.reopen()

    @invariant()
    def depths_are_right(self) -> None:
        self.model.tick(self.rig.now)
        with self.rig.batch():
            depths = self.rig.store.depths()
        assert depths == {queue: n for queue in QUEUES if (n := self.model.live(queue))}


class EngineInFile(EngineAndModel):
    in_file = True


@pytest.mark.slow
@pytest.mark.parametrize("machine", [EngineAndModel, EngineInFile])
def test_engine_and_model_agree(machine: type[EngineAndModel]) -> None:
    examples = settings.default.max_examples // (10 if machine.in_file else 3)  # type: ignore[union-attr]
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=40, deadline=None)
    )
