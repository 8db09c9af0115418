"""``run_until_signal`` inside one process, on virtual time."""

from __future__ import annotations

import signal

import pytest
import trio
from grpclib.const import Status

from sepp_trio import SeppClient, UnauthenticatedError, run_until_signal
from sepp_trio.testing import Fail, FaultProxy, RecordingBroker
from tests.worker.helpers import Put, at_once, given_back, sleeper, worker_on


async def test_one_signal_drains(broker: RecordingBroker, client: SeppClient, put: Put) -> None:
    worker = worker_on(client)
    worker.handle("t", sleeper(3))
    results: list[bool] = []

    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        results.append(await run_until_signal(worker, task_status=task_status))

    async with trio.open_nursery() as nursery:
        await nursery.start(run)
        await put("t")
        await broker.until(lambda jobs: jobs.leased)
        signal.raise_signal(signal.SIGTERM)
        await trio.sleep(1)
        assert worker.statistics().state == "draining"
    assert results == [True]
    assert len(broker.jobs().acked) == 1


async def test_two_force(broker: RecordingBroker, client: SeppClient, put: Put) -> None:
    worker = worker_on(client)
    worker.handle("t", sleeper(300))
    results: list[bool] = []

    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        results.append(await run_until_signal(worker, task_status=task_status))

    async with trio.open_nursery() as nursery:
        await nursery.start(run)
        await put("t")
        await broker.until(lambda jobs: jobs.leased)
        signal.raise_signal(signal.SIGTERM)
        await trio.sleep(1)
        signal.raise_signal(signal.SIGINT)
    assert results == [False]
    assert given_back(broker.jobs()[0], "shutdown grace over")


async def test_errors_come_out_plain(proxy: FaultProxy, client: SeppClient) -> None:
    proxy.inject(Fail("GetServerInfo", status=Status.UNAUTHENTICATED))
    worker = worker_on(client)
    worker.handle("t", at_once)
    with pytest.raises(UnauthenticatedError):
        await run_until_signal(worker)
