"""After any operations the histories agree with what the broker says, and with what it stores."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from sepp_trio import (
    BrokerConfig,
    DeadLetterRecord,
    EnqueueRequest,
    Job,
    LeaseError,
    LimitsConfig,
    QueueConfig,
    ReserveOptions,
    RetryDirective,
    SeppClient,
    StorageConfig,
    open_client,
)
from sepp_trio.testing import FragileServer, Jobs, Recorder, open_fragile_server
from sepp_trio.wire import convert, decoder_of, records

_QUEUES = st.sampled_from(["a", "b"])
_CONFIG = BrokerConfig(
    limits=LimitsConfig(retry_delay_ms=500, max_queue_depth=6),
    storage=StorageConfig(dead_letter_retention_ms=10**10),
    queues=(QueueConfig("b", max_lease_duration_ms=5000),),
)
_PLACES = {"ready": "ready", "scheduled": "scheduled", "leased": "leased", "dead": "dead letter"}


class World:
    """A server with a history, and what a client got of it."""

    def __init__(self, server: FragileServer, client: SeppClient, recorder: Recorder) -> None:
        self.server = server
        self.client = client
        self.recorder = recorder
        self.held: list[Job] = []
        self.enqueued: list[str] = []
        self.acked: set[str] = set()
        self.drained: dict[str, DeadLetterRecord] = {}

    async def enqueue(self, queue: str, attempts: int, key: str | None) -> None:
        request = EnqueueRequest(queue, "t", max_attempts=attempts, idempotency_key=key)
        [result] = await self.client.enqueue_batch([request])
        if hasattr(result, "job_id") and not result.deduplicated:
            self.enqueued.append(result.job_id)

    async def reserve(self, queues: list[str], lease: float, jobs: int) -> None:
        options = ReserveOptions(queues, lease, wait_timeout=0, max_jobs=jobs, worker_id="w")
        self.held += await self.client.reserve(options)

    async def _with_lease(self, pick: int, call: Callable[[Job], Any]) -> Any:
        """Do something with a job that is, or was, leased to the client."""
        if self.held:
            try:
                return await call(self.held[-1 - pick % len(self.held)])
            except LeaseError:
                pass
        return None

    async def ack(self, pick: int) -> None:
        async def ack(job: Job) -> None:
            await self.client.ack(job)
            self.acked.add(job.id)

        await self._with_lease(pick, ack)

    async def nack(self, pick: int, directive: RetryDirective) -> None:
        await self._with_lease(pick, lambda job: self.client.nack(job, directive, "why"))

    async def extend(self, pick: int, seconds: float) -> None:
        await self._with_lease(pick, lambda job: self.client.extend(job, seconds))

    async def lose_lease(self, pick: int) -> None:
        await self._with_lease(pick, self.server.lose_lease)

    async def drain(self, queue: str) -> None:
        for record in await self.client.drain_dead_letters(queue, max_records=2):
            assert isinstance(record, DeadLetterRecord)
            self.drained[record.job_id] = record

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    async def restart(self, down: float, drain: bool) -> None:
        await self.server.restart(down, drain=drain)
        await self.client.get_server_info()

    # ---- what has to hold ----

    async def check(self) -> None:
        """The histories are those of the stored jobs, after any step."""
        await self.client.get_server_info()
        committer = self.server._committer
        assert committer is not None
        # What time has done is done by now: this comes after the sweep.
        contents = await committer.submit(lambda _: self.server.store.contents())
        jobs = self.recorder.jobs()
        assert [job.id for job in jobs] == self.enqueued
        stored = {}
        for place, at, attempt, cause, reason, body in contents:
            job = self.recorder.job(decoder_of(records.Job)(body).id)
            stored[job.id] = job
            assert (job.state, job.attempt) == (_PLACES[place], attempt)
            if place == "leased":
                assert job.lease_deadline is not None
                assert abs(self.server.clock.trio_time(at) - job.lease_deadline) < 1e-6
                assert job.worker_id == "w"
            elif place == "dead":
                assert job.cause is convert.cause_from_wire(cause)
                assert [event.reason for event in job.events[-1:]] == [reason]
        for job in jobs:
            if job.id not in stored:
                assert job.state == ("acked" if job.id in self.acked else "dead letter")
        assert self.drained.keys() == {
            job.id for job in jobs.dead_letters if job.events[-1].kind == "drained"
        }
        self._check_depths(jobs)

    def _check_depths(self, jobs: Jobs) -> None:
        assert self.server.broker is not None
        depths = self.server.broker.statistics().queues
        for queue in ("a", "b"):
            open_jobs = self.recorder.jobs(queue).where(lambda job: not job.is_done)
            assert len(open_jobs) == depths.get(queue, 0)

    async def finish(self) -> None:
        """Everything that is left can be had as the histories say; then all is settled."""
        while left := self.recorder.jobs().where(lambda job: not job.is_done):
            with trio.fail_after(10**6):
                await self.recorder.until(lambda jobs: jobs.ready or not left[0].is_done)
            for queue in ("a", "b"):
                ready = self.recorder.jobs(queue).ready
                options = ReserveOptions([queue], 5, wait_timeout=0, max_jobs=99)
                got = await self.client.reserve(options)
                assert {(job.id, job.attempt) for job in got} == {
                    (job.id, job.attempt) for job in ready
                }
                for job in got:
                    await self.client.ack(job)
                    self.acked.add(job.id)
            await trio.sleep(100)
        with trio.fail_after(1):
            await self.recorder.settled()
        for record in await self.client.drain_dead_letters(max_records=99):
            assert isinstance(record, DeadLetterRecord)
            self.drained[record.job_id] = record
        dead = self.recorder.jobs().dead_letters
        assert all(job.events[-1].kind == "drained" for job in dead)
        assert {job.id for job in dead} == self.drained.keys()
        for job in dead:
            record = self.drained[job.id]
            assert (job.cause, job.attempt) == (record.cause, record.final_attempt)
            assert job.max_attempts == record.max_attempts
        assert {job.id for job in self.recorder.jobs().acked} == self.acked
        assert self.acked | self.drained.keys() == set(self.enqueued)


_PICK = st.integers(0, 2)
_DIRECTIVES = st.sampled_from(
    [
        RetryDirective.DEFAULT,
        RetryDirective.DEAD_LETTER,
        RetryDirective.after(0),
        RetryDirective.after(3),
    ]
)


def _step(name: str, *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.tuples(st.just(name), st.tuples(*arguments))


STEPS = st.lists(
    st.one_of(
        _step("enqueue", _QUEUES, st.integers(1, 3), st.sampled_from([None, "k"])),
        _step(
            "reserve",
            st.sampled_from([["a"], ["a", "b"]]),
            st.sampled_from([30.0, 2.0, 0.5]),
            st.integers(1, 3),
        ),
        _step("ack", _PICK),
        _step("nack", _PICK, _DIRECTIVES),
        _step("extend", _PICK, st.sampled_from([0.001, 4.0, 60.0])),
        _step("lose_lease", _PICK),
        _step("drain", _QUEUES),
        _step("sleep", st.sampled_from([0.0015, 0.5, 3.0, 40.0])),
        _step("restart", st.sampled_from([0.5, 10.0]), st.booleans()),
    ),
    min_size=3,
    max_size=20,
)


@pytest.mark.slow
@given(STEPS)
def test_histories_agree_with_the_broker(steps: list[tuple[str, tuple[Any, ...]]]) -> None:
    async def main() -> None:
        recorder = Recorder()
        async with (
            open_fragile_server(_CONFIG, recorder=recorder) as server,
            open_client(server.connect) as client,
        ):
            world = World(server, client, recorder)
            for queue in "aab":
                await world.enqueue(queue, 2, None)
            await world.reserve(["a"], 30.0, 2)
            for name, arguments in steps:
                await getattr(world, name)(*arguments)
                await world.check()
            await world.finish()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_ids_are_uuids() -> None:
    """Histories are found by the text of their ids, whatever its case."""

    async def main() -> None:
        recorder = Recorder()
        async with (
            open_fragile_server(recorder=recorder) as server,
            open_client(server.connect) as client,
        ):
            ack = await client.enqueue(EnqueueRequest("a", "t"))
            job = recorder.job(ack.job_id.upper())
            assert uuid.UUID(job.id) == uuid.UUID(ack.job_id)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
