"""Workers of a test: started when it wants, drained when it has ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypedDict, Unpack

import trio

from sepp_trio.client import SeppClient
from sepp_trio.types import Duration
from sepp_trio.worker import Handler, Worker

from ._recording import RecordingBroker

_GRACE: Final = 5.0
"""Seconds that handlers have when the test has ended."""


class WorkerOptions(TypedDict, total=False):
    """The options of ``Worker``."""

    wait_timeout: Duration
    max_jobs: int | None
    max_in_flight: int
    auto_extend: bool
    auto_extend_interval: Duration | None
    reserve_error_backoff: Duration
    worker_id: str | None
    handler_timeout: Duration | None
    shutdown_grace: Duration | None


class WorkerStarter:
    """Starts workers that are drained at the end; made by :func:`open_worker_starter`."""

    def __init__(self, client: SeppClient, nursery: trio.Nursery) -> None:
        self._client = client
        self._nursery = nursery
        self._workers: list[Worker] = []

    async def __call__(
        self,
        queues: str | Sequence[str],
        handlers: Mapping[str, Handler],
        *,
        lease_duration: Duration = 30.0,
        **options: Unpack[WorkerOptions],
    ) -> Worker:
        """Start a worker with a handler for each job type; returns once it polls.

        Raises:
            TypeError, ValueError: naming the option and its limit.

        A checkpoint.
        """
        if not isinstance(handlers, Mapping):
            kind = type(handlers).__name__
            raise TypeError(f"handlers must be a mapping of job types to handlers, not {kind}")
        names = [queues] if isinstance(queues, str) else queues
        worker = Worker(self._client, names, lease_duration, **options)
        for job_type, handler in handlers.items():
            worker.handle(job_type, handler)
        return await self.start(worker)

    async def start(self, worker: Worker) -> Worker:
        """Start a worker that was made elsewhere, on any client; returns it once it polls.

        Raises:
            RuntimeError: it has no handler, or has run before.

        A checkpoint.
        """
        await self._nursery.start(worker.run)
        self._workers.append(worker)
        return worker

    def _drain(self) -> None:
        for worker in self._workers:
            worker.shutdown(_GRACE if worker._options.shutdown_grace is None else None)


@asynccontextmanager
async def open_worker_starter(
    broker: RecordingBroker, client: SeppClient
) -> AsyncIterator[WorkerStarter]:
    """What starts workers on a client of the broker. At the end of the block they drain: handlers
    have their ``shutdown_grace`` or else 5 seconds to end. An error of a worker's run comes out
    of the block, which is cancelled."""
    async with trio.open_nursery() as nursery:
        starter = WorkerStarter(client, nursery)
        yield starter
        starter._drain()
        # Or each idle worker waits for the end of its reserve, which a real clock would see.
        broker._committer.send_home()
