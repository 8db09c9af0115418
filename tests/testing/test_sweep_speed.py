"""A sweep of a long handler takes seconds."""

from __future__ import annotations

import time

import trio

from sepp_trio import JobCtx, Payload
from sepp_trio.testing import SweepRun, cancellation_sweep
from tests.testing.sweeping import World


async def cpu_of(rows: int) -> tuple[int, float]:
    """Sweep an import of so many rows: how many histories, and seconds of CPU for each."""
    world = World()

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        for row in range(len(world.rows), rows):
            await trio.lowlevel.checkpoint()
            world.rows.append(row)

    def all_rows(run: SweepRun) -> None:
        assert not run.settled or len(world.rows) == rows

    began = time.process_time()
    report = await cancellation_sweep(handler, invariant=all_rows, setup=world.new)
    assert len(report.checkpoints) == rows + 1
    return report.histories, (time.process_time() - began) / report.histories


async def test_a_short_history_takes_milliseconds() -> None:
    _, seconds = await cpu_of(50)
    assert seconds < 0.01


async def test_hundreds_of_checkpoints_take_seconds() -> None:
    histories, seconds = await cpu_of(300)
    assert histories == 302
    # Each history passes all checkpoints; a turn of Trio is 4 to 8 microseconds.
    assert seconds < 0.02
