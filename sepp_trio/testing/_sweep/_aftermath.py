"""Watches what a handler does with its cancel."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import trio

from sepp_trio.errors import HandlerError, LeaseError

from .._threads import RUN_SYNC
from ._lines import OwnCode, Place
from ._order import SteadyOrder
from ._report import Line
from ._shields import awaited_by, opened_by_own_code
from ._threads import ThreadChecks
from ._tree import Tree
from ._trio import (
    about_to_raise,
    crash,
    deadline_around,
    is_about_to_run,
    is_blocked,
    pending_errors,
    shield_over,
)

_ALLOWED: Final = (HandlerError, LeaseError, SystemExit, KeyboardInterrupt)
"""Says what is to become of the job, or that the lease is lost, or that all is to end."""

_ENDLESS: Final = 10_000
"""Cancels that came up in one task; nobody unwinds so many frames."""

_MANY: Final = 100
"""More are not looked at."""

_TOLD: Final = 10
"""Lines that are of interest to anybody."""


class Fault(NamedTuple):
    """A mistake that needs no invariant to be seen."""

    problem: str
    line: Line | None
    advice: str


class Unstoppable(Exception):
    """Ends a task that swallows every cancel."""


@dataclass(slots=True)
class Raised:
    """A ``Cancelled`` that came up, and where."""

    error: BaseException
    line: Line
    handled: bool = False
    """Whether it was being handled, as in a cleanup, when another one came up: the rest of the
    way it may go in the company of that one."""


class Aftermath(trio.abc.Instrument):
    """From the cancel to the handler's end: where ``Cancelled`` comes up, and where not."""

    def __init__(
        self,
        scope: trio.CancelScope,
        reason: str,
        tree: Tree,
        own: OwnCode,
        order: SteadyOrder,
        checks: ThreadChecks | None,
    ) -> None:
        self.raised: list[Raised] = []
        self.fault: Fault | None = None
        self.on_lingering: Callable[[], None] | None = None
        """Called once, when the handler has not ended and nothing of it is about to run."""
        self.gives_up = False
        """Whether whatever still runs is to be ended by force."""
        self._scope = scope
        self._reason = reason
        self._tree = tree
        self._own = own
        self._order = order
        self._checks = checks
        self._counts: Counter[trio.lowlevel.Task] = Counter()
        if checks is not None:
            checks.visited = lambda line: None
            checks.raised = lambda error, line: self._came_up(error, line or own.handler)
            checks.watch()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        if task not in self._tree.tasks:
            return
        error = about_to_raise(task)
        if isinstance(error, trio.Cancelled) and error.reason == self._reason:
            self._came_up(error, self._line(task))
            self._counts[task] += 1
            if self._counts[task] > _ENDLESS:
                self.gives_up = True
                self.add_fault(
                    "the handler swallows its cancel again and again",
                    self.raised[0].line,
                    "Let Cancelled pass: catch Exception, not BaseException.",
                )
        if self.gives_up:
            crash(task, Unstoppable())

    def _line(self, task: trio.lowlevel.Task) -> Line:
        place = self._own.place(task, self._tree.root)
        if place is None and self._checks is not None:
            place = self._checks.place(task)
        return self._own.handler if place is None else place.line

    def _came_up(self, error: BaseException, line: Line) -> None:
        if len(self.raised) >= _MANY:
            return
        open_ones = [raised for raised in self.raised if not raised.handled]
        if open_ones:
            held = self._held()
            for raised in open_ones:
                raised.handled = id(raised.error) in held
        self.raised.append(Raised(error, line))

    def _held(self) -> set[int]:
        """The ids of all exceptions that the handler's tasks have in hand."""
        errors: list[BaseException] = []
        for task in self._tree.alive:
            for awaited, _ in awaited_by(task):
                found = gc.get_referents(awaited)
                errors += [error for error in found if isinstance(error, BaseException)]
            for nursery in task.child_nurseries:
                errors += pending_errors(nursery)
        return _reachable(errors)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if task not in self._tree.tasks:
            return
        if self._order.tasks is self._tree.tasks:  # else another delivery has begun
            self._order.steps += 1
        if task not in self._tree.alive:
            return
        if self._checks is not None:
            self._checks.look(task)
        self.look_at_wait(task)

    def look_at_wait(self, task: trio.lowlevel.Task) -> None:
        """The current task has just come to a wait, or is in one when the cancel comes."""
        self._look_at_shield(task)
        if self.on_lingering is not None and not any(map(is_about_to_run, self._tree.alive)):
            self.on_lingering()
            self.on_lingering = None

    def _look_at_shield(self, task: trio.lowlevel.Task) -> None:
        # What a cancel can end it has ended by now.
        if (
            self.fault is not None
            or not is_blocked(task)
            or deadline_around(task) < float("inf")
            or any(frame.f_code is RUN_SYNC for frame, _ in task.iter_await_frames())
        ):
            return
        shield = shield_over(task, self._scope)
        if shield is None or not opened_by_own_code(shield, task, self._own):
            return
        place = self._own.place(task, self._tree.root) or Place(self._own.handler, None, None)
        self.add_fault(
            "a shielded section without a deadline keeps the handler from its cancel",
            place.line,
            f"If {place.awaits or 'this'} never comes to an end, neither does the handler. Give"
            " the section a deadline: with trio.move_on_after(5, shield=True)",
        )
        # The verdict is clear: no reason to wait for the section.
        shield.shield = False

    def add_fault(self, problem: str, line: Line | None, advice: str = "") -> None:
        """The first fault counts."""
        if self.fault is None:
            self.fault = Fault(problem, line, advice)

    def lines(self) -> tuple[Line, ...]:
        """Where ``Cancelled`` came up, the first times."""
        return tuple(raised.line for raised in self.raised[:_TOLD])

    # ---- the end ----

    def end(self, error: BaseException | None) -> None:
        """The handler has ended, with ``error`` or well."""
        leaves, reachable = _leaves(error), _reachable([error])
        if not self.raised:
            self._note_unseen(leaves)
        if not self.raised or self.fault is not None:
            return
        first = self.raised[0]
        if any(isinstance(leaf, _ALLOWED) for leaf in leaves):
            return
        if error is None:
            self.add_fault("the handler swallows its cancel: it returned", *self._catcher(first))
        elif not any(isinstance(leaf, trio.Cancelled) for leaf in leaves):
            self.add_fault(
                f"the handler raised {type(error).__name__} instead of its cancel",
                self._own.innermost(leaves[0]) or first.line,
                "Cancelled has to leave the handler; what else goes wrong meanwhile must not take"
                " its place.",
            )
        else:
            for raised in self.raised:
                lost = not raised.handled and id(raised.error) not in reachable
                if lost and self._own.caught(raised.error) is not None:
                    self.add_fault("the handler swallows its cancel", *self._catcher(raised))
                    return

    def _note_unseen(self, leaves: list[BaseException]) -> None:
        """A thread may look in the instant between the cancel and our standing in for it."""
        for leaf in leaves:
            line = self._own.innermost(leaf)
            if isinstance(leaf, trio.Cancelled) and leaf.reason == self._reason and line:
                self.raised.append(Raised(leaf, line))
                return

    def _catcher(self, raised: Raised) -> tuple[Line, str]:
        caught = self._own.caught(raised.error)
        advice = "Let Cancelled pass: catch Exception, not BaseException; or raise it again."
        if caught is not None and caught != raised.line:
            advice = f"Cancelled came up at {raised.line} and did not get past {caught}. " + advice
        return raised.line, advice


def _leaves(error: BaseException | None) -> list[BaseException]:
    if error is None:
        return []
    if isinstance(error, BaseExceptionGroup):
        return [leaf for member in error.exceptions for leaf in _leaves(member)]
    return [error]


def _reachable(errors: Iterable[BaseException | None]) -> set[int]:
    """The ids of exceptions, their members, causes and contexts."""
    found: set[int] = set()
    waiting = list(errors)
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in found:
            continue
        found.add(id(current))
        waiting += [current.__cause__, current.__context__]
        if isinstance(current, BaseExceptionGroup):
            waiting += current.exceptions
    return found
