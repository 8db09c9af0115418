"""The handler's tasks: its own, and those in nurseries below it."""

from __future__ import annotations

from collections.abc import Callable

import trio


class Tree(trio.abc.Instrument):
    """Knows which tasks belong to the handler while it is installed.

    A task in somebody else's nursery does not, even if the handler has started it: a cancel of
    the handler does not reach it.
    """

    def __init__(self, root: trio.lowlevel.Task) -> None:
        self.root = root
        self.tasks = {root}
        """All that there were."""
        self.alive = {root}
        self.on_company: Callable[[], None] | None = None
        """Called when the handler gets its first other task."""

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        nursery = task.eventual_parent_nursery or task.parent_nursery
        if nursery is not None and nursery.parent_task in self.tasks:
            self.tasks.add(task)
            self.alive.add(task)
            if self.on_company is not None:
                self.on_company()
                self.on_company = None

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        self.alive.discard(task)
