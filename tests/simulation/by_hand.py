"""A consumer without a worker: ``reserve`` and ``hold`` in a loop of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import trio

from sepp_trio import (
    ClientError,
    HandlerError,
    Job,
    Lease,
    LeaseError,
    ReserveError,
    ReserveOptions,
    RetryDirective,
    SeppClient,
)

from .jobs import SimulatedHandler


@dataclass
class HeldJob:
    """As much of a ``JobCtx`` as the handlers of the simulation use."""

    job: Job
    lease: Lease

    @property
    def id(self) -> str:
        """See ``Job``."""
        return self.job.id

    @property
    def attempt(self) -> int:
        """See ``Job``."""
        return self.job.attempt

    @property
    def cancel_reason(self) -> str | None:
        """Why the body was cancelled, if ``hold`` did it."""
        return None if self.lease.lost is None else "lease lost"

    async def extend(self, seconds: float) -> datetime:
        """See ``Lease``."""
        return await self.lease.extend(seconds)


class ByHand:
    """Takes a few jobs at a time, each in a task, until it is told to stop."""

    def __init__(
        self,
        client: SeppClient,
        queues: Sequence[str],
        lease: float,
        handler: SimulatedHandler,
        *,
        worker_id: str,
        auto_extend: bool,
        max_jobs: int,
    ) -> None:
        self.worker_id = worker_id
        self._client = client
        self._options = ReserveOptions(
            queues, lease, wait_timeout=2, worker_id=worker_id, max_jobs=max_jobs
        )
        self._handler = handler
        self._auto_extend = auto_extend
        self._stopping = False

    def shutdown(self) -> None:
        """Finish what is there."""
        self._stopping = True

    async def run(self) -> None:
        """Reserve and handle until told to stop."""
        async with trio.open_nursery() as nursery:
            while not self._stopping:
                try:
                    jobs = await self._client.reserve(self._options)
                except (ClientError, ReserveError):
                    await trio.sleep(0.3)
                    continue
                for job in jobs:
                    nursery.start_soon(self._handle, job)
                if jobs:
                    await trio.sleep(0.2)

    async def _handle(self, job: Job) -> None:
        try:
            async with self._client.hold(job, auto_extend=self._auto_extend) as lease:
                try:
                    await self._handler(job.payload, HeldJob(job, lease))
                except HandlerError as error:
                    await lease.nack(error.directive, error.reason)
                except Exception as error:
                    await lease.nack(RetryDirective.DEFAULT, type(error).__name__)
                else:
                    await lease.ack()
        except (LeaseError, ClientError):
            pass  # told by the job's story
