"""``run_until_signal`` inside one process, on virtual time."""

from __future__ import annotations

import signal

import pytest
import trio
from grpclib.const import Status

from sepp_trio import SeppClient, UnauthenticatedError, run_until_signal
from tests.worker.helpers import Sepp, at_once, sleeper, until, worker_on


async def test_one_signal_drains(sepp: Sepp, client: SeppClient) -> None:
    worker = worker_on(client)
    worker.handle("t", sleeper(3))
    results: list[bool] = []

    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        results.append(await run_until_signal(worker, task_status=task_status))

    async with trio.open_nursery() as nursery:
        await nursery.start(run)
        sepp.put("t")
        await until(lambda: worker.statistics().in_flight)
        signal.raise_signal(signal.SIGTERM)
        await trio.sleep(1)
        assert worker.statistics().state == "draining"
    assert results == [True]
    assert len(sepp.acks) == 1


async def test_two_force(sepp: Sepp, client: SeppClient) -> None:
    worker = worker_on(client)
    worker.handle("t", sleeper(300))
    results: list[bool] = []

    async def run(*, task_status: trio.TaskStatus[None]) -> None:
        results.append(await run_until_signal(worker, task_status=task_status))

    async with trio.open_nursery() as nursery:
        await nursery.start(run)
        sepp.put("t")
        await until(lambda: worker.statistics().in_flight)
        signal.raise_signal(signal.SIGTERM)
        await trio.sleep(1)
        signal.raise_signal(signal.SIGINT)
    assert results == [False]
    assert len(sepp.nacks) == 1


async def test_errors_come_out_plain(sepp: Sepp, client: SeppClient) -> None:
    sepp.fail("GetServerInfo", Status.UNAUTHENTICATED)
    worker = worker_on(client)
    worker.handle("t", at_once)
    with pytest.raises(UnauthenticatedError):
        await run_until_signal(worker)
