"""The one timer of a channel."""

from __future__ import annotations

import trio

from sepp_trio.transport._timers import Timers


class Target:
    def __init__(self, log: list[tuple[float, str]], name: str, due: float) -> None:
        self.done = False
        self.due = due
        self._log, self._name = log, name

    def expired(self) -> None:
        self._log.append((trio.current_time(), self._name))


async def test_targets_expire_in_order_unless_done(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    timers, log = Timers(), []
    start = trio.current_time()
    timers.add(Target(log, "before the start", start + 1))
    nursery.start_soon(timers.run)
    await trio.testing.wait_all_tasks_blocked()
    done = Target(log, "done", start + 2)
    for target in (
        Target(log, "five", start + 5),
        done,
        Target(log, "three", start + 3),
        Target(log, "three too", start + 3),
    ):
        timers.add(target)
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
    timers.add(Target(log, "kept", start + 60))
    for number in range(10_000):
        target = Target(log, "done", start + 30 + number / 1000)
        timers.add(target)
        target.done = True
    assert len(timers._new) < 300
    await trio.sleep(100)
    assert log == [(start + 60, "kept")]


async def test_those_done_after_the_timer_has_seen_them_do_not_pile_up_either(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    timers, log = Timers(), []
    nursery.start_soon(timers.run)
    start = trio.current_time()
    timers.add(Target(log, "kept", start + 900))
    for number in range(100):
        calls = [Target(log, "done", start + 1000) for _ in range(50)]
        for target in calls:
            timers.add(target)
        timers.add(Target(log, "short", start + number + 0.5))
        await trio.sleep_until(start + number + 1)
        for target in calls:
            target.done = True
    assert len(timers._heap) + len(timers._new) < 600
    assert log == [(start + number + 0.5, "short") for number in range(100)]


async def test_a_target_may_add_another(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    timers, log = Timers(), []

    class Adding(Target):
        def expired(self) -> None:
            super().expired()
            timers.add(Target(log, "second", self.due + 1))
            timers.add(Target(log, "at once", self.due))

    nursery.start_soon(timers.run)
    start = trio.current_time()
    timers.add(Adding(log, "first", start + 1))
    timers.add(Target(log, "last", start + 5))
    await trio.sleep(10)
    assert log == [
        (start + 1, "first"),
        (start + 1, "at once"),
        (start + 2, "second"),
        (start + 5, "last"),
    ]
