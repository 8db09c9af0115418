"""Virtual time in a sweep: it passes in few turns, and none passes while something is to come."""

from __future__ import annotations

import socket
import time

import trio
from trio.testing import MockClock

from sepp_trio import JobCtx, Payload
from sepp_trio.testing import cancellation_sweep


class Turns(trio.abc.Instrument):
    """Counts the turns of Trio's loop."""

    def __init__(self) -> None:
        self.count = 0

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


async def test_a_sleep_takes_one_turn(autojump_clock: MockClock) -> None:
    turns, taken = Turns(), []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        before = turns.count
        for _ in range(100):
            await trio.sleep(2.5)
        taken.append(turns.count - before)

    trio.lowlevel.add_instrument(turns)
    await cancellation_sweep(handler, max_histories=1, lease_duration=3600)
    assert 100 <= taken[0] < 110  # the worker and its client have timers of their own


async def test_what_is_there_comes_before_time_passes(autojump_clock: MockClock) -> None:
    waited = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        one, other = socket.socketpair()
        with one, other:
            other.send(b"x")
            began = trio.current_time()
            with trio.move_on_after(5):
                await trio.lowlevel.wait_readable(one)
            waited.append(trio.current_time() - began)

    await cancellation_sweep(handler)
    assert set(waited) == {0.0}


async def test_no_time_passes_while_a_thread_works(autojump_clock: MockClock) -> None:
    waited = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        began = trio.current_time()
        with trio.move_on_after(5):
            await trio.to_thread.run_sync(time.sleep, 0.01)
        waited.append(trio.current_time() - began)

    report = await cancellation_sweep(handler)
    assert "trio.to_thread.run_sync" in {point.awaits for point in report.checkpoints}
    assert set(waited) == {0.0}
