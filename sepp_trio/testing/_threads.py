"""A leaping clock waits for threads: for those that work, not for those that wait for Trio."""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Final

import outcome
import trio

from ._in_trio import check_in_trio

if TYPE_CHECKING:
    from trio.testing import MockClock

_PATIENCE: Final = 0.25
"""Real seconds that a thread may work before the clock goes on, at the pace of the real one."""

RUN_SYNC: Final = inspect.unwrap(trio.to_thread.run_sync).__code__
_WAIT: Final = inspect.unwrap(trio.lowlevel.wait_task_rescheduled).__code__

_COUNTED: Final = getattr(trio._threads, "_track_active_thread", nullcontext)
"""Counts a thread. A run that has counted none yet takes its time to say so, at every step."""

_guard: trio.lowlevel.RunVar[_Guard] = trio.lowlevel.RunVar("clock_waits_for_threads")


@contextmanager
def clock_waits_for_threads() -> Iterator[None]:
    """While the block runs, a ``MockClock`` that leaps when all tasks wait does not leap while
    a thread of ``trio.to_thread.run_sync`` is at work.

    The clock stands still then, and after a quarter of a real second goes on at the pace of
    the real one, so that a thread that works until it is cancelled is cancelled in the end. A
    thread that itself waits for Trio (``trio.from_thread.run``) does not hold the clock.

    Blocks may overlap. Has no effect on other clocks. Not a checkpoint.

    Raises:
        RuntimeError: this is no run of Trio.
    """
    from trio.testing import MockClock  # here, for it imports pytest if it is there

    check_in_trio("clock_waits_for_threads")
    clock = trio.lowlevel.current_clock()
    if not isinstance(clock, MockClock):
        yield
        return
    try:
        guard = _guard.get()
    except LookupError:
        guard = _Guard(clock)
        _guard.set(guard)
    guard.enter()
    try:
        yield
    finally:
        guard.leave()


class _Guard(trio.abc.Instrument):
    """Watches for tasks that wait for a thread; a thread can begin and end only in their steps."""

    def __init__(self, clock: MockClock) -> None:
        from trio.testing import active_thread_count

        self._count = active_thread_count
        self._clock = clock
        self._blocks = 0
        self._working: set[trio.lowlevel.Task] = set()
        self._held = False
        self._threshold = math.inf
        self._rate = 0.0
        self._over = threading.Event()

    def enter(self) -> None:
        self._blocks += 1
        if self._blocks == 1:
            with _COUNTED():
                pass  # from now on the count is there
            trio.lowlevel.add_instrument(self)

    def leave(self) -> None:
        self._blocks -= 1
        if not self._blocks:
            trio.lowlevel.remove_instrument(self)
            self._working.clear()
            self._release()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if not self._working and not self._count():
            return
        if waits_for_thread(task):
            self._working.add(task)
            self._hold()
        elif task in self._working:
            self._working.discard(task)
            if not self._working:
                self._release()

    def _hold(self) -> None:
        if self._held or self._clock.autojump_threshold == math.inf:
            return
        self._held = True
        self._threshold, self._clock.autojump_threshold = self._clock.autojump_threshold, math.inf
        self._rate = self._clock.rate
        over = self._over = threading.Event()
        token = trio.lowlevel.current_trio_token()

        def go_on() -> None:
            if not over.is_set():
                self._clock.rate = max(self._rate, 1.0)

        def patience_over(_: outcome.Outcome[bool]) -> None:
            if not over.is_set():
                with suppress(trio.RunFinishedError):
                    token.run_sync_soon(go_on)

        trio.lowlevel.start_thread_soon(lambda: over.wait(_PATIENCE), patience_over)

    def _release(self) -> None:
        if self._held:
            self._held = False
            self._over.set()
            self._clock.rate = self._rate
            self._clock.autojump_threshold = self._threshold


def waits_for_thread(task: trio.lowlevel.Task) -> bool:
    """Whether the task is in ``run_sync`` and waits for what its thread says next."""
    codes = [frame.f_code for frame, _ in task.iter_await_frames()]
    return any(code is RUN_SYNC and codes[i + 1] is _WAIT for i, code in enumerate(codes[:-1]))
