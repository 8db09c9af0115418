"""Finds the checkpoints of a delivery that runs undisturbed."""

from __future__ import annotations

import trio

from ._lines import OwnCode, Place
from ._order import SteadyOrder
from ._report import Checkpoint, Line, Moment
from ._threads import ThreadChecks
from ._tree import Tree
from ._trio import about_to_raise, cancel_points, is_blocked


class Recording(trio.abc.Instrument):
    """Notes every different moment at which a cancel could come.

    One is after each step of a task: it waits, or has ended. Another is before a step, if
    something from outside has woken a task since the last step (a cancel cannot take back what
    it waited for then), and if that makes a difference: because the step passes a place where
    Trio looks for cancels without waiting, or because there are other tasks.
    """

    def __init__(
        self,
        tree: Tree,
        own: OwnCode,
        order: SteadyOrder,
        checks: ThreadChecks,
        known: dict[Checkpoint, Checkpoint],
    ) -> None:
        self.checkpoints: list[Checkpoint] = []
        self._known = known
        self._tree = tree
        self._own = own
        self._order = order
        self._checks = checks
        checks.visited = self._check
        # The handler is about to start, in a step that has begun already.
        self._in_step = True
        self._woken = True
        self._passed = cancel_points(tree.root)
        self._handler = Place(own.handler, None, None)
        self._before: tuple[Moment, Place] = "start", self._handler
        self._in_thread: Place | None = None

    def task_scheduled(self, task: trio.lowlevel.Task) -> None:
        # A wait that a deadline of the handler's own has ended raises Cancelled either way.
        if (
            not self._in_step
            and task in self._tree.tasks
            and not isinstance(about_to_raise(task), trio.Cancelled)
        ):
            self._woken = True

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task in self._tree.tasks:
            self._in_step = True
            self._passed = cancel_points(task)
            self._in_thread = self._checks.place(task) or self._in_thread
            if self._woken:
                self._before = "resumes", self._place(task)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task not in self._tree.tasks:
            return
        tree = self._tree
        ended = task not in tree.alive
        passed = cancel_points(task) - self._passed
        if not ended:
            self._checks.look(task)
            passed -= is_blocked(task)
        if self._woken and (passed or len(tree.alive) > 1 or ended):
            self._add(*self._before)
        self._order.steps += 1
        self._add("ended" if ended else "waits", self._place(task))
        self._in_step = self._woken = False

    def _place(self, task: trio.lowlevel.Task) -> Place:
        return self._own.place(task, self._tree.root) or self._in_thread or self._handler

    def _check(self, line: Line | None) -> None:
        self._add("check", self._handler if line is None else Place(line, None, None))

    def end(self) -> tuple[Checkpoint, ...]:
        """The handler has ended; all checkpoints."""
        self._add("end", self._handler)
        return tuple(self.checkpoints)

    def _add(self, moment: Moment, place: Place) -> None:
        step = self._checks.visits if moment == "check" else self._order.steps
        number = len(self.checkpoints) + 1
        found = Checkpoint(number, moment, *place, step)
        self.checkpoints.append(self._known.setdefault(found, found))
