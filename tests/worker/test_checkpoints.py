"""A worker that is cancelled at any checkpoint of a job's life leaves nothing behind."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from sepp_trio import (
    EnqueueRequest,
    HandlerError,
    JobCtx,
    Payload,
    ReserveOptions,
    Worker,
    open_broker,
)


class CancelAtStep(trio.abc.Instrument):
    """Calls ``act`` before the ``step``-th turn of any task."""

    def __init__(self, step: int, act: Any) -> None:
        self._left = step
        self._act = act

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._left -= 1
        if self._left == 0:
            self._act()

    @property
    def acted(self) -> bool:
        return self._left <= 0


async def life(step: int, how: str) -> bool:
    """One worker, three jobs, and a stop at a step; whether there were so many steps.

    A handler that ends after its cancel, because that came too late for its last checkpoint,
    is given back all the same: nobody can tell it from one that swallows its cancel.
    """
    ended: list[str] = []
    acted = False

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.lowlevel.checkpoint()
        await trio.sleep(0.01)
        if ctx.priority == 9 and ctx.attempt == 1:
            raise HandlerError.retry("again")
        if ctx.priority == 5:
            await ctx.extend(20)
        ended.append(ctx.id)

    async with open_broker() as broker, broker.open_client() as client:
        acks = [
            await client.enqueue(EnqueueRequest("q", "t", priority=n, max_attempts=99))
            for n in (9, 5, 1)
        ]
        worker = Worker(client, ["q"], 60, auto_extend=True, wait_timeout=0.05, max_in_flight=2)
        worker.handle("t", handler)
        with trio.CancelScope() as scope:
            act = scope.cancel if how == "cancel" else lambda: worker.shutdown(0)
            instrument = CancelAtStep(step, lambda: token.run_sync_soon(act))
            token = trio.lowlevel.current_trio_token()
            trio.lowlevel.add_instrument(instrument)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(worker.run)
                await trio.sleep(1)
                worker.shutdown()
        acted = instrument.acted
        trio.lowlevel.remove_instrument(instrument)
        assert len(client._keeper) == 0
        statistics = worker.statistics()
        assert statistics.state == "stopped"
        assert (statistics.in_flight, statistics.waiting, statistics.reporting) == (0, 0, 0)
        assert statistics.unreported == 0
        # Every job is done, or ready now: nothing waits for a lease to end.
        left = await client.reserve(ReserveOptions(["q"], 60, wait_timeout=0, max_jobs=9))
        waiting = {job.id for job in left}
        assert waiting | set(ended) == {ack.job_id for ack in acks}
    return acted


@pytest.mark.parametrize("how", ["cancel", "force"])
def test_nothing_is_stranded_at_any_step(how: str) -> None:
    steps = 0
    for step in range(1, 100_000, 5):
        steps = step
        if not trio.run(life, step, how, clock=trio.testing.MockClock(autojump_threshold=0)):
            break
    assert steps > 100
