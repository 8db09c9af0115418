"""``run_until_signal`` inside one process, on virtual time."""

from __future__ import annotations

import signal

import pytest
import trio
from grpclib.const import Status

from sepp_trio import UnauthenticatedError, run_until_signal
from sepp_trio.testing import Fail
from tests.worker.bench import Bench
from tests.worker.helpers import at_once, given_back, sleeper


async def test_one_signal_drains(bench: Bench) -> None:
    worker = bench.worker()
    worker.handle("t", sleeper(3))
    results: list[bool] = []

    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        results.append(await run_until_signal(worker, task_status=task_status))

    async with trio.open_nursery() as nursery:
        await nursery.start(run)
        await bench.put("t")
        await bench.until(lambda jobs: jobs.leased)
        signal.raise_signal(signal.SIGTERM)
        await trio.sleep(1)
        assert worker.statistics().state == "draining"
    assert results == [True]
    assert len(bench.jobs().acked) == 1


async def test_two_force(bench: Bench) -> None:
    worker = bench.worker()
    worker.handle("t", sleeper(300))
    results: list[bool] = []

    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        results.append(await run_until_signal(worker, task_status=task_status))

    async with trio.open_nursery() as nursery:
        await nursery.start(run)
        await bench.put("t")
        await bench.until(lambda jobs: jobs.leased)
        signal.raise_signal(signal.SIGTERM)
        await trio.sleep(1)
        signal.raise_signal(signal.SIGINT)
    assert results == [False]
    assert given_back(bench.jobs()[0], "shutdown grace over")


async def test_errors_come_out_plain(bench: Bench) -> None:
    bench.inject(Fail("GetServerInfo", status=Status.UNAUTHENTICATED))
    worker = bench.worker()
    worker.handle("t", at_once)
    with pytest.raises(UnauthenticatedError):
        await run_until_signal(worker)
