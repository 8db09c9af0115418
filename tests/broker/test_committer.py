"""Waiting, waking, batches: all of it on virtual time."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
import trio.testing
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from trio.testing import MockClock

from sepp_trio.broker._time import NEVER

from .committing import Running, ids, running
from .helpers import config, job


async def in_background(nursery: trio.Nursery, rig: Running, **options: Any) -> list[Any]:
    """Start a reserve; the list gets its answer and the time when it is there."""
    got: list[Any] = []

    async def wait() -> None:
        queues = options.pop("queues", ("q",))
        got.append(await rig.reserve(*queues, **options))
        got.append(trio.current_time())

    nursery.start_soon(wait)
    await trio.testing.wait_all_tasks_blocked()
    return got


async def test_a_reserve_that_does_not_wait_is_answered_at_once(autojump_clock: MockClock) -> None:
    async with running() as rig:
        start = trio.current_time()
        assert await rig.reserve() == []
        assert trio.current_time() == start


async def test_a_wait_ends_when_it_should(autojump_clock: MockClock) -> None:
    async with running() as rig:
        start = trio.current_time()
        assert await rig.reserve(wait=7.5) == []
        assert trio.current_time() == start + 7.5
        assert rig.committer.statistics().parked == 0


async def test_a_new_job_wakes_a_waiting_reserve(autojump_clock: MockClock) -> None:
    async with running() as rig, trio.open_nursery() as nursery:
        got = await in_background(nursery, rig, queues=("a", "b"), wait=20)
        await trio.sleep(1)
        job_id = await rig.add("b")
        await trio.testing.wait_all_tasks_blocked()
        assert ids(got[0]) == [job_id]


@pytest.mark.parametrize("how", ["schedule", "nack", "expiry"])
async def test_what_time_makes_ready_wakes_a_waiting_reserve(
    how: str, autojump_clock: MockClock
) -> None:
    """Trial 67."""
    async with running() as rig, trio.open_nursery() as nursery:
        start = trio.current_time()
        if how == "schedule":
            await rig.add(delay=0.3)
        else:
            await rig.add()
            (lease,) = await rig.reserve(lease=0.3 if how == "expiry" else 30)
            if how == "nack":
                await rig.nack(lease, 0.3)
        got = await in_background(nursery, rig, queues=("a", "q"), wait=20)
        await trio.sleep(1)
        assert len(got[0]) == 1
        assert got[1] == pytest.approx(start + 0.3, abs=0.001)
        assert got[0][0].attempt == (1 if how == "schedule" else 2)


async def test_queues_are_taken_in_order_when_several_become_ready(
    autojump_clock: MockClock,
) -> None:
    async with running() as rig, trio.open_nursery() as nursery:
        got = await in_background(nursery, rig, queues=("a", "b"), wait=20)
        b, a = await rig.enqueue(job("b"), job("a"))
        await trio.testing.wait_all_tasks_blocked()
        assert ids(got[0]) == [a]
        assert ids(await rig.reserve("b")) == [b]


async def test_two_waiters_and_one_job_leave_one_waiting(autojump_clock: MockClock) -> None:
    async with running() as rig, trio.open_nursery() as nursery:
        start = trio.current_time()
        first = await in_background(nursery, rig, wait=20)
        second = await in_background(nursery, rig, wait=20)
        await rig.add()
        await trio.sleep(5)
        assert len(first[0]) == 1
        assert second == []
        await trio.sleep(20)
        assert second == [[], start + 20]


async def test_waiters_are_served_in_the_order_of_their_coming(autojump_clock: MockClock) -> None:
    async with running() as rig, trio.open_nursery() as nursery:
        waiters = [
            await in_background(nursery, rig, queues=queues, wait=20)
            for queues in [("b", "a"), ("a",), ("b",), ("a", "b"), ("c",)]
        ]
        added = await rig.enqueue(job("a"), job("a"), job("b"))
        await trio.testing.wait_all_tasks_blocked()
        assert [ids(got[0]) if got else None for got in waiters] == [
            [added[2]],
            [added[0]],
            None,
            [added[1]],
            None,
        ]
        nursery.cancel_scope.cancel()


async def test_those_who_wait_come_before_those_who_come(autojump_clock: MockClock) -> None:
    async with running() as rig, trio.open_nursery() as nursery:
        waiting = await in_background(nursery, rig, wait=20)
        nursery.start_soon(rig.add)
        coming = await in_background(nursery, rig, wait=1)
        assert len(waiting[0]) == 1
        assert coming == []


async def test_many_waiters_share_a_batch(autojump_clock: MockClock) -> None:
    async with running() as rig, trio.open_nursery() as nursery:
        waiters = [await in_background(nursery, rig, wait=20) for _ in range(50)]
        added = await rig.enqueue(*[job()] * 50)
        await trio.testing.wait_all_tasks_blocked()
        assert [ids(got[0]) for got in waiters] == [[one] for one in added]


# ---- Callers who leave ----


async def test_a_waiter_who_left_is_leased_nothing(autojump_clock: MockClock) -> None:
    async with running() as rig:
        with trio.move_on_after(1):
            await rig.reserve(wait=20)
        assert rig.committer.statistics().parked == 0
        job_id = await rig.add()
        (lease,) = await rig.reserve()
        assert (ids([lease]), lease.attempt) == ([job_id], 1)


async def test_a_caller_who_leaves_before_the_batch_changes_nothing(
    autojump_clock: MockClock,
) -> None:
    async with running() as rig:
        await rig.add()
        with trio.CancelScope() as scope:
            scope.cancel()
            await rig.reserve()
        with trio.CancelScope() as scope:
            scope.cancel()
            await rig.add("other")
        (lease,) = await rig.reserve()
        assert lease.attempt == 1
        assert rig.store.depths() == {"q": 1}


async def test_jobs_given_back_go_to_the_next_at_once_and_spend_no_attempt(
    autojump_clock: MockClock,
) -> None:
    async with running() as rig, trio.open_nursery() as nursery:
        await rig.add()
        leases = await rig.reserve()
        got = await in_background(nursery, rig, wait=20)
        rig.committer.give_back(leases)
        await trio.testing.wait_all_tasks_blocked()
        assert got[0] == leases
        rig.committer.give_back([])
        assert rig.committer.statistics().waiting == 0


# ---- Batches ----


async def test_operations_that_wait_together_are_one_batch(autojump_clock: MockClock) -> None:
    async with running() as rig, trio.open_nursery() as nursery:
        before = rig.committer.statistics()
        for _ in range(100):
            nursery.start_soon(rig.add)
        await trio.testing.wait_all_tasks_blocked()
        after = rig.committer.statistics()
        assert after.operations - before.operations == 100
        assert after.batches - before.batches == 1


async def test_a_flood_is_taken_in_parts(autojump_clock: MockClock) -> None:
    async with running() as rig, trio.open_nursery() as nursery:
        for _ in range(2500):
            nursery.start_soon(rig.add)
        await trio.testing.wait_all_tasks_blocked()
        assert rig.store.depths() == {"q": 2500}
        assert rig.committer.statistics().batches >= 3


async def test_a_refusal_leaves_the_rest_of_the_batch_alone(autojump_clock: MockClock) -> None:
    def refuse(_: int) -> None:
        raise GRPCError(Status.NOT_FOUND, "job not found")

    async def refused() -> None:
        with pytest.raises(GRPCError) as caught:
            await rig.committer.submit(refuse)
        assert caught.value.status is Status.NOT_FOUND

    async with running() as rig, trio.open_nursery() as nursery:
        nursery.start_soon(rig.add)
        nursery.start_soon(refused)
        nursery.start_soon(rig.add)
    assert rig.committer.statistics().batches <= 2


async def test_an_idle_broker_with_nothing_due_sets_no_alarm(autojump_clock: MockClock) -> None:
    async with running() as rig:
        await rig.add()
        await trio.testing.wait_all_tasks_blocked()
        assert rig.engine.due_at == NEVER
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline == math.inf


async def test_leases_do_not_end_by_leaps_of_the_clock(autojump_clock: MockClock) -> None:
    """Trial 69: a clock that leaps when all tasks wait never leaps over the broker's work."""
    async with running() as rig:
        await rig.enqueue(*[job() for _ in range(20)])
        for _ in range(20):
            (lease,) = await rig.reserve(lease=30, wait=5)
            await trio.sleep(1)
            assert lease.attempt == 1
            assert await rig.ack(lease) == "OK"


async def test_a_retention_that_ends_while_nobody_asks_is_noticed(
    autojump_clock: MockClock,
) -> None:
    async with running(config=config(storage={"dedup_window_ms": 60_000})) as rig:
        await rig.enqueue(job(idempotency_key="k"))
        await trio.sleep(61)
        assert rig.store._connection.execute("SELECT count(*) FROM dedup").fetchone() == (0,)


# ---- The end ----


async def test_a_drain_answers_those_who_wait_at_once(autojump_clock: MockClock) -> None:
    """Trial 4c."""
    async with running() as rig, trio.open_nursery() as nursery:
        got = await in_background(nursery, rig, wait=20)
        start = trio.current_time()
        rig.committer.start_drain()
        await trio.testing.wait_all_tasks_blocked()
        assert got == [[], start]
        assert await rig.reserve(wait=20) == []
        assert trio.current_time() == start
        job_id = await rig.add()
        assert ids(await rig.reserve(wait=20)) == [job_id]


async def test_what_waits_at_the_end_is_still_done(autojump_clock: MockClock) -> None:
    async with running() as rig, trio.open_nursery() as nursery:
        await rig.add()
        leases = await rig.reserve()
        nursery.start_soon(rig.add)
        await trio.lowlevel.checkpoint()
        rig.committer.give_back(leases)
        rig.committer.stop()
        await trio.testing.wait_all_tasks_blocked()
        ready = rig.store._connection.execute("SELECT attempt FROM ready").fetchall()
        assert ready == [(1,), (1,)]
        for late in (rig.add, rig.reserve):
            with pytest.raises(GRPCError) as caught:
                await late()  # type: ignore[operator]
            assert caught.value.status is Status.INTERNAL
        rig.committer.give_back(leases)
        assert rig.committer.statistics().waiting == 0
