"""A fixed order of the handler's tasks: Trio shuffles what is ready to run, on purpose."""

from __future__ import annotations

import random
from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Any

import trio

_run: Any = trio._core._run  # its random order has no public switch; Hypothesis uses these, too


class _Order(random.Random):
    """In the place of Trio's own generator: the order of the watched tasks depends on how many
    steps they have made, and not on what else runs."""

    def __init__(self, previous: random.Random, sorts: bool, steady: SteadyOrder) -> None:
        super().__init__(0)
        self.previous = previous
        self.sorts = sorts
        self.over = False
        self._steady = steady

    def shuffle(self, x: Any) -> None:
        if len(x) < 2:
            return
        if isinstance(self.previous, _Order):
            self.previous.shuffle(x)  # of another sweep in the same process
        watched = self._steady.tasks
        places = [place for place, task in enumerate(x) if task in watched]
        if len(places) > 1:
            order = places.copy()
            random.Random(self._steady.turn).shuffle(order)
            for place, task in zip(places, [x[source] for source in order], strict=True):
                x[place] = task


class SteadyOrder:
    """While the block runs, the tasks in ``tasks`` take turns in an order that is the same in
    every run; ``steps`` is to grow with each of their steps, once there are several."""

    def __init__(self) -> None:
        self.tasks: Container[trio.lowlevel.Task] = ()
        self.steps = 0
        self._alone = 0

    def begin(self, tasks: Container[trio.lowlevel.Task]) -> None:
        """There are other tasks from now on: one, and those that it will start."""
        self.tasks = tasks
        self.steps = self._alone = 0

    def has_company(self) -> None:
        """There are several from now on."""
        self._alone = self.steps

    @property
    def turn(self) -> int:
        """The steps since there are several."""
        return self.steps - self._alone

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The block. Affects all of Trio as little as importing Hypothesis does."""
        order = _Order(_run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING, self)
        _run._ALLOW_DETERMINISTIC_SCHEDULING = True
        _run._r = order
        try:
            yield
        finally:
            order.over = True
            while isinstance(_run._r, _Order) and _run._r.over:
                latest = _run._r
                _run._ALLOW_DETERMINISTIC_SCHEDULING = latest.sorts
                _run._r = latest.previous
