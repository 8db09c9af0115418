"""What the sweep has to know of Trio's tasks and Trio does not tell; all of it is in this file."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Final, NoReturn

import outcome
import trio

_SLEEP: Final = inspect.unwrap(trio.sleep_until).__code__


class Idle:
    """Whether a run of Trio has nothing to do until the next deadline."""

    def __init__(self, runner: Any) -> None:
        from trio.testing import active_thread_count  # here, for it imports pytest if it is there

        self._runner = runner
        self._tasks = runner.runq
        self._sockets = runner.io_manager._registered
        self._threads = active_thread_count
        self.next_deadline: Callable[[], float] = runner.deadlines.next_deadline

    def is_certain(self) -> bool:
        """Whether no task is about to run, and nothing but a signal can wake one earlier."""
        return not (
            self._tasks
            or len(self._sockets) > 1  # Trio's own, by which threads wake it, is one
            or self._runner.waiting_for_idle
            or self._runner.entry_queue.size()
            or self._threads()
        )


def idle_of() -> Idle | None:
    """That of the current run; ``None`` where it is not to be known."""
    runner = trio._core._run.GLOBAL_RUN_CONTEXT.runner
    known = hasattr(runner.io_manager, "_registered") and not runner.is_guest
    return Idle(runner) if known else None


def cancel_points(task: trio.lowlevel.Task) -> int:
    """How many places the task has passed at which a cancel could have been delivered."""
    return task._cancel_points


def number_of(task: trio.lowlevel.Task) -> int:
    """Tasks are numbered in the order in which they were started."""
    return task._counter


def is_blocked(task: trio.lowlevel.Task) -> bool:
    """Whether it waits for something that a cancel may still end."""
    return task._abort_func is not None


def is_about_to_run(task: trio.lowlevel.Task) -> bool:
    """Whether its wait is over."""
    return task._next_send_fn is not None


def about_to_raise(task: trio.lowlevel.Task) -> BaseException | None:
    """What the wait of a task that is about to run is going to raise."""
    result: Any = task._next_send
    return result.error if isinstance(result, outcome.Error) else None


def pending_errors(nursery: trio.Nursery) -> list[BaseException]:
    """What the tasks and the body of an open nursery have raised so far."""
    return getattr(nursery, "_pending_excs", [])


abandoned: Final[list[Coroutine[Any, outcome.Outcome[object], Any]]] = []
"""What crashed tasks ran. It can neither go on nor be closed, for it swallows that as well: were
it collected, it would do so in the middle of whatever runs then, perhaps another run of Trio."""


def crash(task: trio.lowlevel.Task, error: BaseException) -> None:
    """Let a task that is about to run end with the error, whatever it would do about it."""

    def fail(_: object) -> NoReturn:
        nursery: Any = task.parent_nursery
        # The scopes that it is in are never left: their deadlines would outlive the run.
        while task._cancel_status is not nursery._cancel_status:
            status: Any = task._cancel_status
            status._scope._close(None)
        abandoned.append(task.coro)
        raise error

    task._next_send_fn = fail


def deadline_around(task: trio.lowlevel.Task) -> float:
    """When the scopes that the task waits in end its wait at the latest; a sleep is no reason to
    believe that the same wait ends in earnest."""
    status: Any = task._cancel_status
    if any(frame.f_code is _SLEEP for frame, _ in task.iter_await_frames()):
        status = status._parent
    deadline: float = status.effective_deadline()
    return deadline


def shield_over(task: trio.lowlevel.Task, outermost: trio.CancelScope) -> trio.CancelScope | None:
    """The scope that keeps a cancel of ``outermost`` from the task."""
    status: Any = task._cancel_status
    while status is not None and status._scope is not outermost:
        if status._scope.shield:
            scope: trio.CancelScope = status._scope
            return scope
        status = status._parent
    return None
