"""The one timer of a channel."""

from __future__ import annotations

import trio

from sepp_trio.transport._timers import Timers


class Target:
    def __init__(self, log: list[tuple[float, str]], name: str) -> None:
        self.done = False
        self._log, self._name = log, name

    def expired(self) -> None:
        self._log.append((trio.current_time(), self._name))


async def test_targets_expire_in_order_unless_done(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    timers, log = Timers(), []
    start = trio.current_time()
    first = Target(log, "before the start")
    timers.add(start + 1, first)
    nursery.start_soon(timers.run)
    await trio.testing.wait_all_tasks_blocked()
    done = Target(log, "done")
    for at, target in (
        (5, Target(log, "five")),
        (2, done),
        (3, Target(log, "three")),
        (3, Target(log, "three too")),
    ):
        timers.add(start + at, target)
    done.done = True
    await trio.sleep(10)
    assert log == [
        (start + 1, "before the start"),
        (start + 3, "three"),
        (start + 3, "three too"),
        (start + 5, "five"),
    ]


async def test_those_done_do_not_pile_up(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    timers, log = Timers(), []
    nursery.start_soon(timers.run)
    start = trio.current_time()
    kept = Target(log, "kept")
    timers.add(start + 60, kept)
    for number in range(10_000):
        target = Target(log, "done")
        timers.add(start + 30 + number / 1000, target)
        target.done = True
    assert len(timers._heap) < 300
    await trio.sleep(100)
    assert log == [(start + 60, "kept")]
