"""A worker that is stopped at any checkpoint of its jobs' lives leaves nothing behind.

The sweep's handler is a whole program, with a worker of its own.
"""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import trio

from sepp_trio import HandlerError, JobCtx, Payload, SeppClient, Worker
from sepp_trio.testing import SweepRun, cancellation_sweep
from tests.worker.bench import Bench
from tests.worker.helpers import worker_on


async def work(payload: Payload | None, ctx: JobCtx) -> None:
    await trio.lowlevel.checkpoint()
    await trio.sleep(0.01)
    if ctx.priority == 9 and ctx.attempt == 1:
        raise HandlerError.retry_after("again", 0)
    if ctx.priority == 5:
        await ctx.extend(20)


class Program:
    """A worker until three jobs are done. When it is cancelled, so is ``Worker.run``, in the
    block of a client of its own; or (``by_force``) that is left alone, and told to stop at once."""

    def __init__(self, bench: Bench, *, by_force: bool) -> None:
        self.bench = bench
        self.by_force = by_force
        self.queue = "q0"
        self.client: SeppClient
        self.worker: Worker

    async def new_jobs(self) -> None:
        self.queue = f"q{int(self.queue[1:]) + 1}"
        for priority in (9, 5, 1):
            await self.bench.put("t", queue=self.queue, priority=priority, max_attempts=99)

    async def __call__(self, payload: Payload | None, ctx: JobCtx) -> None:
        bench = self.bench
        client = nullcontext(bench.client) if self.by_force else bench.broker.open_client()
        async with client as self.client:
            self.worker = worker_on(
                self.client,
                60,
                queues=[self.queue],
                auto_extend=True,
                wait_timeout=0.05,
                max_in_flight=2,
            )
            self.worker.handle("t", work)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.run)
                try:
                    await bench.settled(self.queue)
                finally:
                    self.worker.shutdown(0 if self.by_force else None)

    async def run(self) -> None:
        with trio.move_on_after(20, shield=self.by_force):
            await self.worker.run()

    def check(self, history: SweepRun) -> None:
        jobs = self.bench.jobs(self.queue)
        # Every job is done, or ready now: nothing waits for a lease to end.
        assert len(jobs.acked) + len(jobs.ready) == 3
        assert not jobs.expired
        assert len(jobs.acked) == 3 or not history.settled
        assert len(self.client._keeper) == 0
        statistics = self.worker.statistics()
        assert statistics.state == "stopped"
        assert (statistics.in_flight, statistics.waiting, statistics.reporting) == (0, 0, 0)
        assert statistics.unreported == 0


@pytest.mark.parametrize("by_force", [False, True])
async def test_nothing_is_stranded_at_any_checkpoint(bench: Bench, by_force: bool) -> None:
    program = Program(bench, by_force=by_force)
    report = await cancellation_sweep(
        program, setup=program.new_jobs, invariant=program.check, by="shutdown"
    )
    assert len(report.checkpoints) > (40 if by_force else 100)
