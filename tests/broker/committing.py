"""A committer that runs, with short ways to call it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from grpclib.exceptions import GRPCError

from sepp_trio.broker._clock import BrokerClock
from sepp_trio.broker.committer import Committer
from sepp_trio.broker.config import BrokerConfig
from sepp_trio.broker.engine import Engine, Lease
from sepp_trio.broker.store import Store
from sepp_trio.broker.validation import ReservePlan
from sepp_trio.wire import decode, records

from .helpers import job, ms


class Running:
    """Calls as the service makes them, for a peer that takes everything."""

    def __init__(self, store: Store, config: BrokerConfig, *, threaded: bool) -> None:
        self.store = store
        self.clock = BrokerClock()
        self.engine = Engine(store, config)
        self.committer = Committer(store, self.engine, self.clock, threaded=threaded)

    async def enqueue(self, *jobs: records.EnqueueRequest) -> list[str]:
        """Enqueue; the ids."""
        answer = await self.committer.submit(lambda now: self.engine.enqueue_batch(jobs, now))
        return [result.success.job_id for result in answer.results if result.success is not None]

    async def add(self, queue: str = "q", *, delay: float | None = None) -> str:
        """Enqueue one job, scheduled so many seconds from now."""
        when = None if delay is None else ms(self.clock.now_ms() + int(delay * 1000))
        (job_id,) = await self.enqueue(job(queue, scheduled_at=when))
        return job_id

    async def reserve(
        self, *queues: str, wait: float = 0, lease: float = 30, max_jobs: int = 1
    ) -> list[Lease]:
        """Reserve, in seconds."""
        plan = ReservePlan(queues or ("q",), int(wait * 1000), int(lease * 1000), max_jobs)
        leases = await self.committer.reserve(plan, self, trio.current_time() + wait)
        assert leases is not None
        return leases

    @property
    def peer(self) -> Running:
        """Who all calls are for."""
        return self

    def allowance(self, own: int, everyone: int) -> int:
        """It may have as much as it wants."""
        return 1 << 40

    def hold(self, size: int) -> None:
        """It takes it at once."""

    async def ack(self, lease: Lease) -> str:
        """Ack; the status."""
        request = records.AckRequest(str(uuid.UUID(bytes=lease.job_id)), lease.attempt)
        try:
            await self.committer.submit(lambda now: self.engine.ack(request, now))
        except GRPCError as error:
            return error.status.name
        return "OK"

    async def nack(self, lease: Lease, delay: float) -> None:
        """Nack with a delay."""
        request = records.NackRequest(
            str(uuid.UUID(bytes=lease.job_id)),
            lease.attempt,
            retry=records.NackRetry(delay=ms(int(delay * 1000))),
        )
        await self.committer.submit(lambda now: self.engine.nack(request, now))


def ids(leases: list[Lease]) -> list[str]:
    return [decode(records.Job, lease.message).id for lease in leases]


@asynccontextmanager
async def running(
    path: str | None = None, *, config: BrokerConfig | None = None, threaded: bool = False
) -> AsyncIterator[Running]:
    """Run a committer around the block; it must end by itself when it is told to."""
    store = Store(path, "buffer")
    try:
        rig = Running(store, config or BrokerConfig(), threaded=threaded)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rig.committer.run)
            yield rig
            rig.committer.stop()
    finally:
        store.close()
