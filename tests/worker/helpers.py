"""Ways to run a worker, things for it to do, and looks at what became of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from sepp_trio import EnqueueRequest, JobCtx, Payload, SeppClient, Worker
from sepp_trio.testing import JobHistory, Jobs


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[None]:
    """Run a worker around the block, then drain it."""
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        yield
        worker.shutdown()


async def until(condition: Callable[[], object], limit: float = 600.0) -> None:
    """Wait until the condition holds, in steps that are short at first."""
    step = 0.001
    with trio.fail_after(limit):
        while not condition():
            await trio.sleep(step)
            step = min(step * 1.05, 0.05)


def worker_on(
    client: SeppClient, lease: float = 30.0, *, queues: Sequence[str] = ("emails",), **options: Any
) -> Worker:
    """A worker for the queue ``emails``, without jitter in its name."""
    return Worker(client, queues, lease, **{"worker_id": "w", **options})


async def at_once(payload: Payload | None, ctx: JobCtx) -> None:
    """A handler that has nothing to do."""


def sleeper(seconds: float) -> Callable[[Payload | None, JobCtx], Any]:
    """A handler that takes its time."""

    async def handle(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(seconds)

    return handle


# ---- the server ----

RETRY_DELAY: Any = pytest.approx(6.125, abs=0.9)
"""Seconds, by the queue's policy (the server takes off up to a quarter): so a plain retry can be
told from one that was asked for."""


async def enqueue(
    producer: SeppClient, *job_types: str, queue: str = "emails", **fields: Any
) -> list[str]:
    """Enqueue a job of each type, with these fields; their ids."""
    ids: list[str] = []
    for start in range(0, len(job_types), 256):
        requests = [
            EnqueueRequest(queue, job_type, **fields) for job_type in job_types[start : start + 256]
        ]
        ids += [ack.job_id for ack in await producer.enqueue_atomic(requests)]
    return ids


class Watched:
    """A handler that takes its time and says when it began, was cancelled, and why."""

    def __init__(self, seconds: float = 3600) -> None:
        self.seconds = seconds
        self.began: list[float] = []
        self.cancelled: list[float] = []
        self.reasons: list[str | None] = []

    async def __call__(self, payload: Payload | None, ctx: JobCtx) -> None:
        self.began.append(trio.current_time())
        try:
            await trio.sleep(self.seconds)
        except trio.Cancelled:
            self.cancelled.append(trio.current_time())
            self.reasons.append(ctx.cancel_reason)
            raise


def ids(jobs: Jobs) -> set[str]:
    """Their ids."""
    return {job.id for job in jobs}


def given_back(job: JobHistory, reason: str) -> bool:
    """Whether its last delivery was ended by a nack for delivery at once, for this reason."""
    nacks = [event for event in job.events if event.kind == "nacked"]
    return (
        job.state == "ready"
        and nacks[-1].reason == f"interrupted: {reason}"
        and nacks[-1].seconds == 0
    )
