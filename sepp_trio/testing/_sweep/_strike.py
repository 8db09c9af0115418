"""Gets to one checkpoint of a delivery, and acts there."""

from __future__ import annotations

from collections.abc import Callable

import trio

from ._lines import OwnCode
from ._order import SteadyOrder
from ._report import Checkpoint, Line
from ._threads import ThreadChecks
from ._tree import Tree


class Approach(trio.abc.Instrument):
    """Counts the steps of the handler's tasks up to the checkpoint, and calls ``act`` there, with
    the line at which that turned out to be. Other instruments take it from there."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        act: Callable[[Line], None],
        tree: Tree,
        own: OwnCode,
        order: SteadyOrder,
        checks: ThreadChecks | None,
    ) -> None:
        self._checkpoint = checkpoint
        self._act = act
        self._tasks = tree.tasks
        self._tree = tree
        self._own = own
        self._order = order
        self._checks = checks
        # No step has a number below 0.
        self._step = checkpoint.step if checkpoint.moment in ("waits", "ended") else -1
        if checks is not None:
            checks.visited = self._check

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task in self._tasks:
            self._order.steps += 1
            if self._checks is not None and task in self._tree.alive:
                self._checks.look(task)
            if self._order.steps == self._step:
                self._act(self._line(task))

    def _check(self, line: Line | None) -> None:
        assert self._checks is not None
        if self._checkpoint.moment == "check" and self._checks.visits == self._checkpoint.step:
            self._act(line or self._checkpoint.line)

    def _line(self, task: trio.lowlevel.Task) -> Line:
        # A thread without a task of own code goes on meanwhile: it is where it was before.
        place = self._own.place(task, self._tree.root)
        return self._checkpoint.line if place is None else place.line


class ApproachBeforeStep(Approach):
    """The same for the moment before a step."""

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task in self._tasks and self._order.steps == self._checkpoint.step:
            self._act(self._line(task))


class Steps(trio.abc.Instrument):
    """Counts the steps of the handler's tasks, for their order."""

    def __init__(self, tree: Tree, order: SteadyOrder) -> None:
        self._tasks = tree.tasks
        self._order = order

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task in self._tasks:
            self._order.steps += 1
