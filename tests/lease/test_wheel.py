"""The timer wheel: rounded up, cheap to leave, no burst."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from sepp_trio.lease import Timer, TimerWheel
from sepp_trio.lease._wheel import COARSEST, grain_for


@pytest.mark.parametrize(
    ("interval", "grain"),
    [(10, 2**-2), (2, 2**-3), (1, 2**-4), (0.5, 2**-5), (0.1, 2**-8), (0.001, 2**-9)],
)
def test_buckets_are_a_sixteenth_of_the_interval_at_most(interval: float, grain: float) -> None:
    assert grain_for(interval) == grain
    assert grain <= COARSEST


async def test_timers_ring_at_their_time_or_up_to_a_bucket_later(nursery: trio.Nursery) -> None:
    wheel = TimerWheel()
    nursery.start_soon(wheel.run)
    rung: dict[float, float] = {}
    for due in (5.0, 0.3, 1.01, 0.3001, 0.0):
        timer = Timer(lambda due=due: rung.setdefault(due, trio.current_time()))  # type: ignore[misc]
        wheel.start(timer, due, 2**-4)
    await trio.sleep(6)
    assert sorted(rung) == [0.0, 0.3, 0.3001, 1.01, 5.0]
    assert all(due <= at <= due + 2**-4 for due, at in rung.items())


async def test_a_timer_that_is_stopped_or_started_again_does_not_ring_as_before(
    nursery: trio.Nursery,
) -> None:
    wheel = TimerWheel()
    nursery.start_soon(wheel.run)
    rung: list[float] = []
    timer = Timer(lambda: rung.append(trio.current_time()))
    wheel.start(timer, 1)
    timer.stop()
    timer.stop()
    await trio.sleep(2)
    assert rung == []
    wheel.start(timer, 3)
    wheel.start(timer, 4)
    await trio.sleep(5)
    assert rung == [4.0]


async def test_an_earlier_timer_wakes_a_wheel_that_sleeps(nursery: trio.Nursery) -> None:
    wheel = TimerWheel()
    nursery.start_soon(wheel.run)
    rung: list[float] = []
    await trio.sleep(1)
    wheel.start(Timer(lambda: rung.append(trio.current_time())), 100)
    await trio.sleep(1)
    wheel.start(Timer(lambda: rung.append(trio.current_time())), 3)
    wheel.start(Timer(lambda: rung.append(trio.current_time())), 0)  # overdue already
    await trio.sleep(200)
    assert rung == [2.0, 3.0, 100.0]


async def test_a_timer_may_start_again_and_stop_others_as_it_rings(nursery: trio.Nursery) -> None:
    wheel = TimerWheel()
    nursery.start_soon(wheel.run)
    rung: list[str] = []

    def ring(name: str, other: str) -> None:
        rung.append(name)
        timers[other].stop()
        if len(rung) < 4:
            wheel.start(timers[name], trio.current_time())

    timers = {"a": Timer(lambda: ring("a", "b")), "b": Timer(lambda: ring("b", "a"))}
    wheel.start(timers["a"], 1)
    wheel.start(timers["b"], 1)
    await trio.sleep(2)
    assert len(rung) == 4
    assert len(set(rung)) == 1


async def test_a_crowd_of_timers_lets_others_run(nursery: trio.Nursery) -> None:
    wheel = TimerWheel()
    nursery.start_soon(wheel.run)
    rung = 0
    seen: list[int] = []

    def ring() -> None:
        nonlocal rung
        rung += 1

    for _ in range(2000):
        wheel.start(Timer(ring), 1)
    await trio.sleep_until(1)
    while rung < 2000:
        seen.append(rung)
        await trio.lowlevel.checkpoint()
    assert len(seen) >= 7
