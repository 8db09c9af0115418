"""Workers of a test: started when it wants, drained when it has ended."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypedDict, Unpack

import trio

from sepp_trio.client import SeppClient
from sepp_trio.types import Duration
from sepp_trio.worker import Handler, Worker
from sepp_trio.worker.job import RunningJob

from ._recording import RecordingBroker
from ._standstill import limit_over
from ._stuck import break_shields, family, where

logger = logging.getLogger("sepp_trio.testing")

_GRACE: Final = 5.0
"""Seconds that handlers have when the test has ended."""

_LIMIT: Final = 60.0
"""Seconds after which workers have ended, beyond the grace of their handlers."""

_LOOK_EVERY: Final = 1.0
"""Seconds between two looks for new shields of handlers that have to end."""


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
        self._block_ended = trio.Event()
        self._stuck: str | None = None

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

    async def _end_in_time(self) -> None:
        """Once the block has ended, so must the workers: else note where their handlers stand,
        and get them out. Goes on until it is cancelled."""
        await self._block_ended.wait()
        graces = (worker._options.shutdown_grace for worker in self._workers)
        limit = _LIMIT + max((_GRACE if grace is None else grace for grace in graces), default=0.0)
        over = await limit_over(limit)
        told = "; ".join(f"{job.label} is at {where(task)}" for task, job in self._handlers())
        self._stuck = (
            f"the test has ended, and after {over} a worker has not:"
            f" {told or 'it could not report its jobs'}"
        )
        logger.error(self._stuck)  # a thread that never ends lets nothing else be told
        self._nursery.cancel_scope.cancel(reason="the worker starter's limit is over")
        while True:
            for task, job in self._handlers():
                assert job.lease.scope is not None
                break_shields(task, job.lease.scope)
            await trio.sleep(_LOOK_EVERY)

    def _handlers(self) -> Iterator[tuple[trio.lowlevel.Task, RunningJob]]:
        """The tasks in which handlers run, and their jobs."""
        for run in self._nursery.child_tasks:
            for task in family(run):
                frame = getattr(task.coro, "cr_frame", None)
                if frame is not None and frame.f_code is RunningJob.handle.__code__:
                    yield task, frame.f_locals["self"]


@asynccontextmanager
async def open_worker_starter(
    broker: RecordingBroker, client: SeppClient
) -> AsyncIterator[WorkerStarter]:
    """What starts workers on a client of the broker. At the end of the block they drain: handlers
    have their ``shutdown_grace`` or else 5 seconds to end. An error of a worker's run comes out
    of the block, which is cancelled.

    Raises:
        trio.TooSlowError: a worker has not ended a minute after that; says where its handlers
            stand. Shields do not keep them: they are cancelled all the same.
    """
    failure: BaseException | None = None
    watch = trio.CancelScope(shield=True)  # a handler may as well outlast a cancel from outside

    async def end_in_time() -> None:
        with watch:
            await starter._end_in_time()

    async with trio.open_nursery() as watching:
        try:
            async with trio.open_nursery() as nursery:
                starter = WorkerStarter(client, nursery)
                watching.start_soon(end_in_time)
                try:
                    yield starter
                finally:
                    starter._block_ended.set()
                starter._drain()
                # Else each idle worker waits for the end of its reserve, which a real clock sees.
                broker._committer.send_home()
        except BaseException as error:
            failure = error  # raised below: the nursery would make a group of it
        watching.cancel_scope.shield = True  # a second Cancelled would hide the failure
        watch.cancel(reason="the workers have ended")
    try:
        if starter._stuck is not None:
            raise trio.TooSlowError(starter._stuck) from failure
        if failure is not None:
            raise failure
    finally:
        del failure  # it refers to this frame, which refers to it
