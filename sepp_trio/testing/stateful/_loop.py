"""A Trio run that goes on only while it is asked to, in the thread that asks.

Hypothesis calls the rules of a state machine one after the other, from plain code. So Trio runs
in guest mode, and its host is the rule that is being called: it lets Trio go on until the rule's
own async function has ended, and then the whole run stands still, in the middle of whatever its
other tasks do. On a clock that leaps, what happens depends on nothing but the rules.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from functools import partial
from queue import SimpleQueue
from typing import Any, Final, Generic, TypeVar

import outcome
import trio
import trio.testing

from .._stuck import family
from .._threads import waits_for_thread

T = TypeVar("T")
W = TypeVar("W")

_PATIENCE: Final = 10.0
"""Real seconds that a thread may work while the run stands still for it."""
_LOOK_EVERY: Final = 0.0001


class SteppedLoop(Generic[W]):
    """A Trio run in a world of its own, from its opening to :meth:`close`.

    While it is open, no other Trio run can be started in the thread.
    """

    def __init__(self, open_world: Callable[[], AbstractAsyncContextManager[W]]) -> None:
        self.clock = trio.testing.MockClock(autojump_threshold=0)
        self._open_world = open_world
        self._todo: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._task: trio.lowlevel.Task | None = None
        self._resting = False
        self._patient = True
        self._answer: outcome.Outcome[Any] | None = None
        self._end: outcome.Outcome[None] | None = None
        self._world: W | None = None
        trio.lowlevel.start_guest_run(
            self._main,
            run_sync_soon_threadsafe=self._todo.put,
            done_callback=self._done,
            host_uses_signal_set_wakeup_fd=True,
            clock=self.clock,
        )
        self._go_on()
        if self._end is not None:
            self._raise_end()

    @property
    def world(self) -> W:
        """What was opened."""
        assert self._world is not None
        return self._world

    def run(self, within: float, call: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Let the run go on until ``call(*args)`` has ended; its result.

        Raises:
            trio.TooSlowError: it was cancelled after so many seconds of virtual time.
            BaseException: what it raises; or, the world having broken down, what has done it.
        """
        self._wake(partial(_bounded, within, call, *args))
        self._go_on()
        if self._answer is None:
            self._raise_end()
            raise RuntimeError("the run has ended")
        answer, self._answer = self._answer, None
        result: T = answer.unwrap()
        return result

    def close(self) -> None:
        """Close the world, and let the run end. What it raises comes out."""
        if self._end is None and not self._resting:
            # An exception of the host (Ctrl-C, a thread that does not end) came in between.
            self._patient = False
            self._go_on()
        self._wake(None)
        self._go_on()
        self._raise_end()

    def tasks(self) -> Iterator[trio.lowlevel.Task]:
        """All tasks of the run."""
        root = trio.lowlevel.current_root_task()
        assert root is not None
        return family(root)

    # ---- in the run ----

    async def _main(self) -> None:
        self._task = trio.lowlevel.current_task()
        async with self._open_world() as self._world:
            while True:
                self._resting = True
                call = await trio.lowlevel.wait_task_rescheduled(_not_now)
                if call is None:
                    return
                try:
                    self._answer = outcome.Value(await call())
                except trio.Cancelled:
                    raise  # the world breaks down, and says itself why
                except BaseException as error:
                    self._answer = outcome.Error(error)

    # ---- in the host ----

    def _wake(self, call: Callable[[], Awaitable[Any]] | None) -> None:
        self._answer = None
        if self._end is None:
            assert self._task is not None
            self._resting = False
            trio.lowlevel.reschedule(self._task, outcome.Value(call))

    def _done(self, end: outcome.Outcome[None]) -> None:
        self._end = end

    def _raise_end(self) -> None:
        end, self._end = self._end, outcome.Value(None)
        if isinstance(end, outcome.Error):
            raise _alone(end.error)

    def _go_on(self) -> None:
        """Let the run go on until it rests, or has ended."""
        while not self._resting and self._end is None:
            if self._patient and trio.testing.active_thread_count():
                self._wait_for_threads()
            self._todo.get()()

    def _wait_for_threads(self) -> None:
        """Let the threads of the run work, while it stands still, until each has something to
        say to it: or what happens would depend on who is faster."""
        until = time.monotonic() + _PATIENCE
        while (working := self._working()) > _messages():
            time.sleep(_LOOK_EVERY)
            if time.monotonic() > until:
                raise RuntimeError(
                    f"{working} threads of handlers have worked for {_PATIENCE:g} s of real time:"
                    " a state machine waits for threads, so nothing else can happen meanwhile"
                )

    def _working(self) -> int:
        # Those that have been told already, and only wait for their turn, do not count.
        return sum(waits_for_thread(task) for task in self.tasks() if task._next_send_fn is None)


async def _bounded(within: float, call: Callable[..., Awaitable[T]], *args: Any) -> T:
    with trio.fail_after(within):
        return await call(*args)


def _alone(error: BaseException) -> BaseException:
    """The one error in groups of one; the nurseries of the world are nobody's business."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def _messages() -> int:
    return trio.lowlevel.current_statistics().run_sync_soon_queue_size


def _not_now(_: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED
