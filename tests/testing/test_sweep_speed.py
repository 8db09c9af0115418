"""A sweep of a long handler costs little more than the handler's own checkpoints."""

from __future__ import annotations

import pytest
import trio

from sepp_trio import JobCtx, Payload
from sepp_trio.testing import SweepRun, cancellation_sweep
from tests.testing.sweeping import World


class Steps(trio.abc.Instrument):
    """Counts the steps of all tasks."""

    def __init__(self) -> None:
        self.count = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += 1


@pytest.mark.parametrize("rows", [50, 300])
async def test_a_history_takes_a_step_for_each_checkpoint_and_few_others(rows: int) -> None:
    world = World()

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        for row in range(len(world.rows), rows):
            await trio.lowlevel.checkpoint()
            world.rows.append(row)

    def all_rows(run: SweepRun) -> None:
        assert not run.settled or len(world.rows) == rows

    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    report = await cancellation_sweep(handler, invariant=all_rows, setup=world.new)
    trio.lowlevel.remove_instrument(steps)
    assert len(report.checkpoints) == rows + 1
    assert report.histories == rows + 2
    # Each history passes all checkpoints, some of them in its second delivery; the other steps
    # are those of the server, the worker and the sweep, and their number does not grow.
    assert steps.count / report.histories < rows + 100
