"""Where workers are tried: a server in memory, a way to it on which faults happen, a client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from sepp_trio import BrokerConfig, LimitsConfig, SeppClient, Worker, open_client
from sepp_trio.testing import (
    CallLog,
    FaultProxy,
    Jobs,
    RecordingBroker,
    open_fault_proxy,
    open_recording_broker,
)
from sepp_trio.wire import decoder_of, records
from sepp_trio.worker import Handler
from tests.worker.helpers import enqueue, running, worker_on

_PATIENCE = 1000.0
"""Virtual seconds; a worker that does not do what it should is not waited for."""

CONFIG = BrokerConfig(limits=LimitsConfig(retry_delay_ms=7000))


class Bench:
    """Made by ``open_bench``; the fixture ``bench`` is one."""

    def __init__(
        self,
        broker: RecordingBroker,
        proxy: FaultProxy,
        calls: CallLog,
        client: SeppClient,
        producer: SeppClient,
    ) -> None:
        self.broker = broker
        self.jobs, self.job, self.lose_lease = broker.jobs, broker.job, broker.lose_lease
        self.proxy = proxy
        self.inject, self.relent = proxy.inject, proxy.relent
        self.calls = calls
        """What ``client`` has asked the server."""
        self.client = client
        """The workers' client, by way of the proxy."""
        self._producer = producer

    async def put(self, *job_types: str, **fields: Any) -> list[str]:
        """Enqueue a job of each type, past all faults; their ids."""
        return await enqueue(self._producer, *job_types, **fields)

    async def settled(self, queue: str | None = None) -> None:
        """Wait until all jobs are done."""
        with trio.fail_after(_PATIENCE):
            await self.broker.settled(queue)

    async def until(self, predicate: Callable[[Jobs], object]) -> Jobs:
        """Wait until it holds for the jobs."""
        with trio.fail_after(_PATIENCE):
            return await self.broker.until(predicate)

    def worker(self, lease: float = 30.0, **options: Any) -> Worker:
        """A worker for ``emails``."""
        return worker_on(self.client, lease, **options)

    @asynccontextmanager
    async def running(
        self, handler: Handler, lease: float = 30.0, **options: Any
    ) -> AsyncIterator[Worker]:
        """Run a worker around the block, with this handler for type ``t``; then drain it."""
        worker = self.worker(lease, **options)
        worker.handle("t", handler)
        async with running(worker):
            yield worker

    def asked(self, rpc: str) -> list[Any]:
        """The requests of all calls of a kind."""
        return asked(self.calls, rpc)


def asked(calls: CallLog, rpc: str) -> list[Any]:
    """The requests of all calls of a kind."""
    decode = decoder_of(getattr(records, f"{rpc}Request"))
    return [decode(call.request) for call in calls.of(rpc)]


@asynccontextmanager
async def open_bench(config: BrokerConfig = CONFIG, **client_options: Any) -> AsyncIterator[Bench]:
    """A bench whose server and client have these settings."""
    calls = CallLog()
    async with (
        open_recording_broker(config=config) as broker,
        broker.open_client() as producer,
        open_fault_proxy(broker, observer=calls) as proxy,
        open_client(proxy.connect, **client_options) as client,
    ):
        yield Bench(broker, proxy, calls, client, producer)
