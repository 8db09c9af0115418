"""The engine on its store with a time of its own, and short ways to make requests."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from grpclib.exceptions import GRPCError

from sepp_trio.broker.config import BrokerConfig, LimitsConfig, QueueConfig, StorageConfig
from sepp_trio.broker.engine import Engine
from sepp_trio.broker.store import Store
from sepp_trio.broker.validation import (
    check_ack,
    check_batch,
    check_nack,
    drain_limit,
    extension_ms,
    job_rejection,
    reserve_plan,
)
from sepp_trio.wire import decode, records

START = 1_700_000_000_000
DAY = 86_400_000


def config(
    *queues: QueueConfig, strict: bool = False, storage: Any = (), **limits: Any
) -> BrokerConfig:
    """A configuration in which only the named values differ from the defaults."""
    return BrokerConfig(
        strict_queues=strict,
        queues=queues,
        limits=LimitsConfig(**limits),
        storage=StorageConfig(**dict(storage)),
    )


def job(queue: str = "q", **values: Any) -> records.EnqueueRequest:
    """A job with nothing in it."""
    return records.EnqueueRequest(queue=queue, job_type=values.pop("job_type", "t"), **values)


def ms(value: int) -> tuple[int, int]:
    """Milliseconds as a wire time."""
    return value // 1000, value % 1000 * 1_000_000


def from_wire(value: tuple[int, int] | None) -> int:
    """A wire time as milliseconds."""
    assert value is not None
    return value[0] * 1000 + value[1] // 1_000_000


def counted_ids() -> Iterator[uuid.UUID]:
    """Ids of version 4 that count up."""
    for number in itertools.count(1):
        yield uuid.UUID(int=number, version=4)


class Rig:
    """A broker without a server: every call checks its request and runs in a transaction, after
    a sweep if one is due, at the time :attr:`now`."""

    def __init__(self, config: BrokerConfig | None = None, path: str | None = None) -> None:
        self.config = config or BrokerConfig()
        self.now = START
        self.path = path
        self._ids = counted_ids()
        self._open()

    def _open(self) -> None:
        self.store = Store(self.path, "buffer")
        self.engine = Engine(self.store, self.config, new_id=lambda: next(self._ids))

    def reopen(self) -> None:
        """Close the database and open it again."""
        self.close()
        self._open()

    def close(self) -> None:
        self.store.close()

    @contextmanager
    def batch(self) -> Iterator[None]:
        """One transaction; sweeps until nothing is due, as an idle committer would. A refusal
        does not undo it, as in the committer."""
        refusal = None
        with self.store.transaction():
            while self.engine.due_at <= self.now:
                self.engine.sweep(self.now)
            try:
                yield
            except GRPCError as error:
                refusal = error
        if refusal is not None:
            raise refusal

    def enqueue(self, *jobs: records.EnqueueRequest) -> list[records.JobResult]:
        check_batch(self.config, jobs)
        checked = [job_rejection(self.config, one, self.now) or one for one in jobs]
        with self.batch():
            return self.engine.enqueue_batch(checked, self.now).results

    def add(self, queue: str = "q", **values: Any) -> str:
        """Enqueue one job; its id."""
        (result,) = self.enqueue(job(queue, **values))
        assert result.success is not None, result.rejection
        return result.success.job_id

    def atomic(self, *jobs: records.EnqueueRequest) -> records.EnqueueAtomicResponse:
        check_batch(self.config, jobs)
        checked = [job_rejection(self.config, one, self.now) or one for one in jobs]
        with self.batch():
            return self.engine.enqueue_atomic(checked, self.now)

    def reserve(
        self, *queues: str, lease: int = 30_000, max_jobs: int | None = None
    ) -> list[records.Job]:
        request = records.ReserveRequest(
            list(queues or ("q",)), lease_duration=ms(lease), max_jobs=max_jobs
        )
        plan = reserve_plan(self.config, request)
        with self.batch():
            leases = self.engine.reserve(plan, self.now)
        return [decode(records.Job, lease.message) for lease in leases]

    def take(self, *queues: str, lease: int = 30_000) -> records.Job:
        """Reserve the one job that is there."""
        (taken,) = self.reserve(*queues, lease=lease)
        return taken

    def ack(self, job_id: str, attempt: int = 1) -> None:
        request = records.AckRequest(job_id, attempt)
        check_ack(request)
        with self.batch():
            assert self.engine.ack(request, self.now) == records.AckResponse(job_id)

    def nack(
        self,
        job_id: str,
        attempt: int = 1,
        *,
        delay: int | None = None,
        dead: bool = False,
        reason: str | None = None,
    ) -> bool:
        """Give a job back; whether it is a dead letter now."""
        retry = None
        if delay is not None:
            retry = records.NackRetry(delay=ms(delay))
        elif dead:
            retry = records.NackRetry(dead_letter=())
        request = records.NackRequest(job_id, attempt, reason, retry)
        check_nack(request)
        with self.batch():
            answer = self.engine.nack(request, self.now)
        assert answer.job_id == job_id
        return answer.dead_lettered

    def extend(self, job_id: str, attempt: int = 1, lease: int = 30_000) -> int:
        """Extend a lease; when it ends now."""
        request = records.ExtendRequest(job_id, attempt, ms(lease))
        lease_ms = extension_ms(request)
        with self.batch():
            answer = self.engine.extend(request, lease_ms, self.now)
        assert answer.job_id == job_id
        return from_wire(answer.lease_expires_at)

    def drain(self, queue: str | None = None, max_: int | None = None) -> list[Any]:
        """Drain dead letters: the records."""
        limit = drain_limit(self.config, records.DrainDeadLettersRequest(queue, max_))
        with self.batch():
            answer = self.engine.drain_dead_letters(queue, limit)
        return [decode(records.DeadLetterRecord, raw) for raw in answer.records]

    def depth(self, queue: str = "q") -> int:
        with self.batch():
            return self.store.depth(queue)


def status_of(call: Any, *args: Any, **options: Any) -> str:
    """The name of the status with which a call is refused."""
    try:
        call(*args, **options)
    except GRPCError as error:
        return error.status.name
    return "OK"
