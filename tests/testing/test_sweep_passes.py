"""The sweep has nothing to say about handlers that are right."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from sepp_trio import HandlerError, JobCtx, Payload
from sepp_trio.testing import SweepRun, cancellation_sweep
from tests.testing.sweeping import World

ALL = ("lease lost", "shutdown", "timeout")
EVERY = ("lease lost", "takeover", "shutdown", "timeout", "drain")


@pytest.fixture
def world() -> World:
    return World()


async def test_an_idempotent_import(world: World) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        for row in range(4):
            if row not in world.marks:
                await trio.sleep(1)
                world.rows.append(row)
                world.marks.add(row)

    def no_row_lost_or_doubled(run: SweepRun) -> None:
        assert world.rows == list(range(len(world.rows)))
        assert not run.settled or len(world.rows) == 4

    report = await cancellation_sweep(
        handler, invariant=no_row_lost_or_doubled, setup=world.new, by=EVERY, cancels=2
    )
    assert len(report.checkpoints) == 5
    assert report.causes == EVERY
    assert report.skipped == 0
    assert "5 checkpoints, up to 2 cancelled" in str(report)


async def test_nurseries_and_shields_with_a_deadline(world: World) -> None:
    async def part(number: int) -> None:
        try:
            await trio.sleep(number)
        finally:
            with trio.move_on_after(5, shield=True):
                await trio.sleep(0.1)
                world.rows.append(number)

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        world.rows.clear()
        async with trio.open_nursery() as nursery:
            for number in range(1, 4):
                nursery.start_soon(part, number)

    def all_cleaned_up(run: SweepRun) -> None:
        if run.settled:
            assert sorted(world.rows) == [1, 2, 3]

    await cancellation_sweep(handler, invariant=all_cleaned_up, setup=world.new, by=ALL)


async def test_channels_generators_locks_and_scopes_of_its_own(world: World) -> None:
    lock = trio.Lock()

    @asynccontextmanager
    async def session() -> AsyncIterator[list[int]]:
        async with lock:
            pending: list[int] = []
            yield pending
            world.rows = pending

    async def numbers() -> AsyncIterator[int]:
        for number in range(3):
            await trio.sleep(0.5)
            yield number

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        send, receive = trio.open_memory_channel[int](1)

        async def produce() -> None:
            async with send:
                async for number in numbers():
                    await send.send(number)

        async with session() as pending, trio.open_nursery() as nursery:
            nursery.start_soon(produce)
            async for number in receive:
                with trio.move_on_after(0.1):
                    await trio.sleep(1)
                pending.append(number)
        with trio.move_on_after(1) as scope:
            await trio.sleep_forever()
        assert scope.cancelled_caught

    def whole(run: SweepRun) -> None:
        assert world.rows in ([], [0, 1, 2])
        assert not lock.locked()

    report = await cancellation_sweep(handler, invariant=whole, setup=world.new, by=ALL)
    assert len(report.checkpoints) > 10


async def test_a_plain_function_in_its_thread(world: World) -> None:
    def handler(payload: Payload | None, ctx: JobCtx) -> None:
        for row in range(3):
            if row not in world.marks:
                trio.from_thread.check_cancelled()
                trio.from_thread.run_sync(world.rows.append, row)
                world.marks.add(row)
                trio.from_thread.run(trio.sleep, 1)

    def no_row_lost_or_doubled(run: SweepRun) -> None:
        assert world.rows == list(range(len(world.rows)))
        assert not run.settled or len(world.rows) == 3

    report = await cancellation_sweep(
        handler, invariant=no_row_lost_or_doubled, setup=world.new, by=ALL
    )
    assert sum(point.moment == "check" for point in report.checkpoints) == 3


async def test_a_handler_that_retries_by_its_own_will(world: World) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(1)
        world.rows.append(1)
        if len(world.rows) < 3:
            raise HandlerError.retry_after("not yet", 3600)

    report = await cancellation_sweep(handler, setup=world.new)
    assert len(report.checkpoints) == 6


async def test_a_handler_that_gives_up_the_job(world: World) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(1)
        raise HandlerError.permanent("no such user")

    await cancellation_sweep(handler, by=ALL)


async def test_threads_of_an_async_handler(world: World) -> None:
    threads: set[int] = set()

    def work(row: int) -> None:
        threads.add(threading.get_ident())
        trio.from_thread.check_cancelled()
        world.rows.append(row)

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        for row in range(3):
            if row not in world.rows:
                await trio.to_thread.run_sync(work, row)

    def in_order(run: SweepRun) -> None:
        assert world.rows == list(range(len(world.rows)))

    report = await cancellation_sweep(handler, invariant=in_order, setup=world.new, by=ALL)
    assert threading.get_ident() not in threads
    assert sum(point.moment == "check" for point in report.checkpoints) == 3


async def test_a_drain_that_gives_the_job_back(world: World) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        for row in range(3):
            if row not in world.marks:
                if ctx.stopping:
                    raise HandlerError.retry("the worker stops")
                await trio.sleep(1)
                world.rows.append(row)
                world.marks.add(row)

    def all_rows(run: SweepRun) -> None:
        assert not run.settled or world.rows == [0, 1, 2]

    report = await cancellation_sweep(
        handler, invariant=all_rows, setup=world.new, by="drain", cancels=2
    )
    assert report.deliveries > report.histories


async def test_shields_tasks_and_threads_in_a_drain(world: World) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 1)
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(trio.from_thread.check_cancelled)
                event = trio.Event()
                trio.lowlevel.current_trio_token().run_sync_soon(event.set)
                await event.wait()

    report = await cancellation_sweep(handler, by="drain")
    assert report.deliveries == report.histories


async def test_a_cleanup_beside_another_worker(world: World) -> None:
    """Each delivery has its own place: nobody is in anybody's way."""
    overlaps = 0

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        nonlocal overlaps
        overlaps += bool(world.marks)
        world.marks.add(ctx.attempt)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep, 1)
                await trio.sleep(0.5)
        finally:
            with trio.move_on_after(5, shield=True):
                await trio.sleep(2)
                world.marks.remove(ctx.attempt)

    def clean(run: SweepRun) -> None:
        assert not world.marks

    for auto_extend in (False, True):
        overlaps = 0
        report = await cancellation_sweep(
            handler,
            invariant=clean,
            setup=world.new,
            by="takeover",
            cancels=2,
            auto_extend=auto_extend,
        )
        # All but the deliveries after one that was cancelled at its end.
        assert overlaps == 6 + 6 * 7 + 7 * 6
        assert report.deliveries == 1 + 2 * 7 + 3 * 49
