"""A leaping clock waits for threads that work, and for no others."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import trio
import trio.testing

from sepp_trio import EnqueueRequest, JobCtx, Payload, Worker
from sepp_trio.testing import (
    Acked,
    LeaseLost,
    Retried,
    clock_waits_for_threads,
    open_recording_broker,
    run_handler,
)

_WORK = 0.03
"""Real seconds; enough for a clock to leap many times."""


def work() -> None:
    time.sleep(_WORK)


async def test_the_clock_stands_still_while_a_thread_works() -> None:
    with clock_waits_for_threads(), trio.fail_after(5):
        await trio.to_thread.run_sync(work)
        assert trio.current_time() == 0
        await trio.sleep(3)
        assert trio.current_time() == 3
        await trio.to_thread.run_sync(work, limiter=trio.CapacityLimiter(1))
    assert trio.current_time() == 3


async def test_without_it_the_clock_leaps() -> None:
    leapt = threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, leapt.wait)
        await trio.sleep(5)
        leapt.set()
    assert trio.current_time() == 5


async def test_of_two_threads_the_longer_one_counts() -> None:
    with clock_waits_for_threads():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 7)
            nursery.start_soon(trio.to_thread.run_sync, work)
            await trio.to_thread.run_sync(time.sleep, 2 * _WORK)
            assert trio.current_time() == 0
    assert trio.current_time() == 7


async def test_threads_below_an_async_generator_count() -> None:
    async def generate() -> AsyncIterator[int]:
        for number in range(3):
            await trio.to_thread.run_sync(work)
            yield number

    with clock_waits_for_threads(), trio.fail_after(5):
        assert [number async for number in generate()] == [0, 1, 2]
    assert trio.current_time() == 0


async def test_a_thread_that_waits_for_trio_does_not_hold_the_clock() -> None:
    def thread() -> float:
        work()
        trio.from_thread.run(trio.sleep, 1000)
        work()
        return trio.from_thread.run_sync(trio.current_time)

    with clock_waits_for_threads():
        assert await trio.to_thread.run_sync(thread) == 1000


async def test_an_abandoned_thread_does_not_hold_the_clock() -> None:
    go_on = threading.Event()
    with clock_waits_for_threads():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: trio.to_thread.run_sync(go_on.wait, abandon_on_cancel=True))
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        await trio.sleep(1000)
        assert trio.current_time() == 1000
        go_on.set()


async def test_a_thread_that_works_long_lets_time_pass_as_it_does() -> None:
    def until_cancelled() -> None:
        while True:
            trio.from_thread.check_cancelled()
            time.sleep(0.001)

    began = time.perf_counter()
    with clock_waits_for_threads():
        with trio.move_on_after(0.2) as scope:
            await trio.to_thread.run_sync(until_cancelled)
        assert scope.cancelled_caught
        assert 0.2 <= trio.current_time() < 0.2 + time.perf_counter() - began
        await trio.lowlevel.checkpoint()
        now = trio.current_time()
        work()
        assert trio.current_time() == now, "it stands still again"
        await trio.sleep(1000)


async def test_it_leaves_the_clock_as_it_was() -> None:
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    clock.autojump_threshold = 0.01

    async def hold(seconds: float) -> None:
        with clock_waits_for_threads():
            await trio.to_thread.run_sync(time.sleep, seconds)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, _WORK)
        nursery.start_soon(hold, 2 * _WORK)
    assert (clock.autojump_threshold, clock.rate) == (0.01, 0)
    with clock_waits_for_threads():
        work_until = threading.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, work_until.wait)
            await trio.testing.wait_all_tasks_blocked()
            assert clock.autojump_threshold > 1000
            work_until.set()
    assert (clock.autojump_threshold, clock.rate) == (0.01, 0)


async def test_a_block_that_ends_before_its_thread_lets_the_clock_go() -> None:
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    go_on = threading.Event()
    async with trio.open_nursery() as nursery:
        with clock_waits_for_threads():
            nursery.start_soon(trio.to_thread.run_sync, go_on.wait)
            await trio.testing.wait_all_tasks_blocked()
        assert clock.autojump_threshold == 0
        await trio.sleep(5)
        go_on.set()


@pytest.mark.trio(run=trio.run)
async def test_it_has_nothing_to_do_on_the_real_clock() -> None:
    with clock_waits_for_threads():
        before = trio.current_time()
        await trio.to_thread.run_sync(work)
        assert trio.current_time() - before >= _WORK


@pytest.mark.parametrize("clock", [trio.testing.MockClock(), trio.testing.MockClock(rate=1000)])
def test_a_clock_that_does_not_leap_is_left_alone(clock: trio.testing.MockClock) -> None:
    rate = clock.rate

    async def main() -> None:
        with clock_waits_for_threads():
            await trio.to_thread.run_sync(work)
            assert clock.rate == rate

    trio.run(main, clock=clock)


# ---- handlers ----


def in_thread(payload: Payload | None, ctx: JobCtx) -> None:
    work()


async def awaits_thread(payload: Payload | None, ctx: JobCtx) -> None:
    await trio.to_thread.run_sync(work)


@pytest.mark.parametrize("handler", [in_thread, awaits_thread])
async def test_run_handler_waits_for_threads(handler: Callable[..., Awaitable[None]]) -> None:
    outcome = await run_handler(handler, lease_duration=1)
    assert outcome == Acked()
    assert outcome.duration == 0


@pytest.mark.parametrize("handler", [in_thread, awaits_thread])
async def test_a_worker_on_a_recording_broker_waits_for_threads(
    handler: Callable[..., Awaitable[None]],
) -> None:
    async with (
        open_recording_broker() as broker,
        broker.open_client() as client,
        trio.open_nursery() as nursery,
    ):
        worker = Worker(client, ["q"], 1, max_in_flight=2)
        worker.handle("t", handler)
        await nursery.start(worker.run)
        for _ in range(5):
            await client.enqueue(EnqueueRequest("q", "t"))
        await broker.settled()
        assert len(broker.jobs().acked) == 5
        assert trio.current_time() == 0
        worker.shutdown()


async def test_a_plain_handler_that_looks_is_cancelled() -> None:
    def looks(payload: Payload | None, ctx: JobCtx) -> None:
        while True:
            trio.from_thread.check_cancelled()
            time.sleep(0.001)

    assert await run_handler(looks, handler_timeout=0.1) == Retried(
        0, "handler timed out after 0.1 s"
    )
    assert await run_handler(looks, lease_duration=0.2) == LeaseLost("its time is up")


async def test_a_plain_handler_extends_from_its_thread() -> None:
    def extends(payload: Payload | None, ctx: JobCtx) -> None:
        for _ in range(5):
            ctx.extend_from_thread(60)
            trio.from_thread.run(trio.sleep, 50)

    outcome = await run_handler(extends, limit=1000)
    assert outcome == Acked()
    assert [extend.at for extend in outcome.extends] == [0, 50, 100, 150, 200]
