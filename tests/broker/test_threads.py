"""The database file is worked on in a thread: nothing of the loop waits for it, nothing leaks."""

from __future__ import annotations

import collections
import random
import sqlite3
import statistics
import threading
import time
from pathlib import Path

import pytest
import trio

from sepp_trio.broker import open_broker
from sepp_trio.client import open_client
from sepp_trio.types import EnqueueRequest, Payload, ReserveOptions
from sepp_trio.wire import decode, records

from .committing import running
from .helpers import job


async def test_clients_that_leave_at_random_break_nothing(tmp_path: Path) -> None:
    """Trial 64: statements take 5 ms, and whoever calls may be gone before they have ended."""
    dice = random.Random(64)
    default = trio.to_thread.current_default_thread_limiter()
    async with running(str(tmp_path / "jobs.db"), threaded=True) as rig:
        connection = rig.store._connection
        connection.create_function("slow", 0, lambda: time.sleep(0.005))
        connection.execute("CREATE TEMP TRIGGER slow AFTER INSERT ON jobs BEGIN SELECT slow(); END")
        confirmed: set[str] = set()

        async def client() -> None:
            for _ in range(8):
                with trio.move_on_after(dice.random() * 0.02):
                    confirmed.update(await rig.enqueue(job()))
                with trio.move_on_after(dice.random() * 0.02):
                    for lease in await rig.reserve(wait=0.01):
                        confirmed.discard(decode(records.Job, lease.message).id)

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(client)
        with trio.fail_after(20):
            # Nothing is half done: the next call works, and what was confirmed is there.
            await rig.add("last")
            left = set()
            while leases := await rig.reserve(max_jobs=256):
                left |= {decode(records.Job, lease.message).id for lease in leases}
        assert confirmed <= left
        assert not connection.in_transaction
        assert default.borrowed_tokens == 0
        rig.committer.stop()
        start = time.perf_counter()
    assert time.perf_counter() - start < 15  # nothing is left to be waited for


async def test_a_job_leased_while_its_caller_left_is_given_back(tmp_path: Path) -> None:
    async with running(str(tmp_path / "jobs.db"), threaded=True) as rig:
        await rig.enqueue(*[job() for _ in range(20)])
        taken = 0
        connection = rig.store._connection
        connection.create_function("slow", 0, lambda: time.sleep(0.02))
        connection.execute(
            "CREATE TEMP TRIGGER slow AFTER INSERT ON leased BEGIN SELECT slow(); END"
        )
        for _ in range(10):
            with trio.move_on_after(0.01):
                taken += len(await rig.reserve())
        connection.execute("DROP TRIGGER slow")
        await rig.add("other")  # after everything that was given back
        leases = await rig.reserve(max_jobs=256)
        assert {lease.attempt for lease in leases} == {1}
        assert len(leases) + taken == 20


def slow_down(connection: sqlite3.Connection) -> threading.Event:
    """Each insert of a job takes 50 ms; the event says that one has begun."""
    begun = threading.Event()

    def slow() -> None:
        begun.set()
        time.sleep(0.05)

    connection.create_function("slow", 0, slow)
    connection.execute("CREATE TEMP TRIGGER slow AFTER INSERT ON jobs BEGIN SELECT slow(); END")
    return begun


async def test_who_leaves_while_a_batch_runs_waits_no_more(tmp_path: Path) -> None:
    async with running(str(tmp_path / "jobs.db"), threaded=True) as rig:
        connection = rig.store._connection
        at_work = slow_down(connection)
        leave = trio.CancelScope()

        async def wait_in_vain() -> None:
            with leave:
                await rig.reserve("empty", wait=20)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_in_vain)
            while rig.committer.statistics().parked == 0:  # noqa: ASYNC110
                await trio.sleep(0.01)
            nursery.start_soon(rig.add)
            await trio.to_thread.run_sync(at_work.wait)
            leave.cancel()
        assert rig.committer.statistics().parked == 0

        async def wait_for_the_drain() -> None:
            assert await rig.reserve("empty", wait=20) == []

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_the_drain)
            await trio.sleep(0.02)
            nursery.start_soon(rig.add)
            await trio.sleep(0.02)
            rig.committer.start_drain()


async def test_a_cancelled_committer_lets_its_batch_end(tmp_path: Path) -> None:
    path = str(tmp_path / "jobs.db")
    with trio.CancelScope() as scope:
        async with running(path, threaded=True) as rig, trio.open_nursery() as nursery:
            at_work = slow_down(rig.store._connection)
            nursery.start_soon(rig.add)
            await trio.to_thread.run_sync(at_work.wait)
            scope.cancel()
    async with running(path) as rig:
        assert rig.store.depths() == {"q": 1}


async def test_the_loop_goes_on_while_a_statement_runs(tmp_path: Path) -> None:
    at_work, go_on = threading.Event(), threading.Event()
    let_go: list[bool] = []

    def statement() -> None:
        at_work.set()
        let_go.append(go_on.wait(20))

    async with (
        running(str(tmp_path / "jobs.db"), threaded=True) as rig,
        trio.open_nursery() as nursery,
    ):
        connection = rig.store._connection
        connection.create_function("wait", 0, statement)
        connection.execute("CREATE TEMP TRIGGER wait AFTER INSERT ON jobs BEGIN SELECT wait(); END")
        nursery.start_soon(rig.add)
        await trio.to_thread.run_sync(at_work.wait)
        go_on.set()
    assert let_go == [True]


@pytest.mark.slow
async def test_each_job_is_delivered_once_and_the_loop_never_waits(tmp_path: Path) -> None:
    """Trials 60, 61: eight reservers of 2000 jobs on a synced file, and a ticker beside them."""
    seen: collections.Counter[tuple[str, int]] = collections.Counter()
    order: list[int] = []
    lags: list[float] = []

    async def tick() -> None:
        while True:
            before = trio.current_time()
            await trio.sleep(0.01)
            lags.append(trio.current_time() - before - 0.01)

    async def consume(address: str) -> None:
        async with open_client(address) as client:
            while jobs := await client.reserve(
                ReserveOptions(["q"], 30, wait_timeout=0.2, max_jobs=7)
            ):
                assert len(jobs) <= 7
                for one in jobs:
                    seen[one.id, one.attempt] += 1
                    order.append(one.priority)
                    await client.ack(one)

    async with open_broker(tmp_path / "jobs.db") as broker, trio.open_nursery() as nursery:
        address: str = await nursery.start(broker.serve, "127.0.0.1:0")
        async with open_client(address) as client:
            for _ in range(20):
                await client.enqueue_batch(
                    [
                        EnqueueRequest("q", "t", Payload(b"x", "raw"), priority=i % 10)
                        for i in range(100)
                    ]
                )
        nursery.start_soon(tick)
        async with trio.open_nursery() as consumers:
            for _ in range(8):
                consumers.start_soon(consume, address)
        assert broker.statistics().queues == {}
        nursery.cancel_scope.cancel()
    assert len(seen) == 2000
    assert set(seen.values()) == {1}
    # Eight consumers take at most 7 each ahead of one another.
    assert all(later <= earlier for earlier, later in zip(order, order[60:], strict=False))
    # Shared machines hold everybody up now and then.
    assert statistics.median(lags) < 0.1
