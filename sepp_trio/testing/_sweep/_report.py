"""What a sweep tells: where it cancelled, what the handler did, what went wrong."""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, Literal, TypeAlias

Cause: TypeAlias = Literal["lease lost", "takeover", "shutdown", "timeout", "drain"]
"""What happens to a handler; a drain does not cancel it."""

Ending: TypeAlias = Literal["acked", "dead letter", "delivered again", "not over"]
"""What becomes of a job with a delivery."""

Moment: TypeAlias = Literal["start", "waits", "resumes", "ended", "check", "end"]

_MOMENTS: Final[dict[Moment, str]] = {
    "start": "before its first line",
    "waits": "while it waited here",
    "resumes": "when it had what it waited for here, before it went on",
    "ended": "when this task had ended",
    "check": "at check_cancelled()",
    "end": "when it had ended, before the worker could report it",
}


@dataclass(frozen=True, slots=True)
class Line:
    """A line of code: ``file``, ``number`` and the function it is in; ``called_from`` is the
    line in the handler's file that it was called from, if it is in another one."""

    file: str
    number: int
    function: str
    called_from: Line | None = field(default=None, compare=False)

    @property
    def text(self) -> str:
        """The source of the line, without its indentation."""
        return linecache.getline(self.file, self.number).strip()

    def __str__(self) -> str:
        file = self.file
        here = os.getcwd() + os.sep
        return f"{file.removeprefix(here)}:{self.number}, in {self.function}"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A place at which a handler can be cancelled.

    ``number`` counts from 1 in its delivery. ``line`` is the innermost line of the user's own
    code there, ``awaits`` what that line awaits, ``task`` the name of the task if it is not
    the handler's own. ``moment`` is ``"start"``, ``"waits"``, ``"resumes"`` (the wait is over,
    the handler has not gone on yet), ``"ended"`` (a task of the handler's nurseries has),
    ``"check"`` (in a thread) or ``"end"`` (the handler has returned, the job is not acked).
    """

    number: int
    moment: Moment
    line: Line
    awaits: str | None = None
    task: str | None = None
    step: int = field(default=0, repr=False)
    """How many steps of the handler's tasks come before it; of checks, how many checks."""

    def __str__(self) -> str:
        text = f"checkpoint {self.number}, {_MOMENTS[self.moment]}"
        if self.task is not None:
            text += f", in task {self.task}"
        return text


@dataclass(frozen=True, slots=True)
class SweptDelivery:
    """One delivery of a history.

    ``cause`` and ``checkpoint`` say how and where it was cancelled, if it was. ``raised`` are
    the own lines at which ``Cancelled`` then came up, in order. ``error`` is what the handler
    raised in the end (``None`` if it returned), ``outcome`` what became of the job.
    """

    attempt: int
    cause: Cause | None
    checkpoint: Checkpoint | None
    raised: tuple[Line, ...]
    error: BaseException | None = field(hash=False)
    outcome: Ending

    @property
    def line(self) -> Line | None:
        """The line at which it was cancelled: where ``Cancelled`` came up first, or else where
        it stood."""
        if self.raised:
            return self.raised[0]
        return None if self.checkpoint is None else self.checkpoint.line

    def __str__(self) -> str:
        return f"delivery {self.attempt}: {self._told}"

    @property
    def _told(self) -> str:
        if self.checkpoint is None:
            lines = ["not cancelled"]
        else:
            lines = [f"{self.cause} at {self.checkpoint}"]
            lines += _shown(self.checkpoint.line, self.checkpoint.awaits)
        for line, group in groupby(self.raised):
            times = len(list(group))
            if times > 1 or self.checkpoint is None or line != self.checkpoint.line:
                lines.append("  Cancelled came up" + (f" {times} times" if times > 1 else ""))
                lines += _shown(line, None)
        if self.error is not None and not _is_cancel(self.error):
            lines.append(f"  it raised {type(self.error).__name__}: {first_line(self.error)}")
        lines.append(f"  the job: {self.outcome}")
        return "\n".join(lines)


def _story(deliveries: Iterable[SweptDelivery]) -> str:
    """All of them, those that follow each other and are the same told once."""
    parts = []
    for told, group in groupby(deliveries, lambda delivery: delivery._told):
        first, *others = group
        if others:
            parts.append(f"deliveries {first.attempt} to {others[-1].attempt}: {told}")
        else:
            parts.append(str(first))
    return "\n".join(parts)


def _shown(line: Line, awaits: str | None) -> list[str]:
    text = line.text or "(no source)"
    shown = [f"    {line}", f"      {text}" + (f"    [in {awaits}]" if awaits else "")]
    if line.called_from is not None:
        shown += [f"    called from {line.called_from}", f"      {line.called_from.text}"]
    return shown


def first_line(error: BaseException) -> str:
    """Of an exception's text."""
    return str(error).partition("\n")[0]


def _is_cancel(error: BaseException) -> bool:
    return type(error).__name__ == "Cancelled"


@dataclass(frozen=True, slots=True)
class SweepRun:
    """What an invariant is given: the history so far, with the delivery that is just over."""

    deliveries: tuple[SweptDelivery, ...]

    @property
    def last(self) -> SweptDelivery:
        """The delivery that is just over."""
        return self.deliveries[-1]

    @property
    def attempt(self) -> int:
        """Its number."""
        return self.last.attempt

    @property
    def settled(self) -> bool:
        """Whether the job is done: acked, or given up as the handler wished."""
        return self.last.outcome in ("acked", "dead letter")

    @property
    def cancels(self) -> int:
        """How many deliveries were cancelled so far."""
        return sum(delivery.checkpoint is not None for delivery in self.deliveries)

    def __str__(self) -> str:
        return _story(self.deliveries)


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What a sweep that found nothing has covered.

    ``checkpoints`` are those of the undisturbed run; ``histories`` the ones that were run,
    ``skipped`` those that ``max_histories`` left out, ``deliveries`` all deliveries of them.
    """

    causes: tuple[Cause, ...]
    cancels: int
    checkpoints: tuple[Checkpoint, ...]
    histories: int
    skipped: int
    deliveries: int

    def __str__(self) -> str:
        text = (
            f"{len(self.checkpoints)} checkpoints, up to {self.cancels} cancelled in a history,"
            f" by {' and '.join(self.causes)}: {self.histories} histories,"
            f" {self.deliveries} deliveries, nothing found"
        )
        if self.skipped:
            text += f"; {self.skipped} histories were left out (max_histories)"
        return text


class SweepFailure(AssertionError):
    """A history that a handler does not survive, the shortest that was found.

    ``problem`` says in a line what is wrong, ``history`` are the deliveries, ``line`` is the
    line of the user's code to look at, ``lines`` those at which it was cancelled. The
    invariant's own exception is the cause.
    """

    def __init__(
        self, problem: str, history: Iterable[SweptDelivery], line: Line | None, advice: str = ""
    ) -> None:
        self.problem = problem
        self.history = tuple(history)
        self.lines = tuple(
            delivery.line
            for delivery in self.history
            if delivery.checkpoint is not None and delivery.line is not None
        )
        self.line = line or (self.lines[-1] if self.lines else None)
        self.advice = advice
        super().__init__(problem)

    def __str__(self) -> str:
        parts = [self.problem]
        if self.line is not None:
            parts += _shown(self.line, None)
        if self.advice:
            parts.append(self.advice)
        parts.append("The history:")
        parts += [f"  {line}" for line in _story(self.history).splitlines()]
        return "\n".join(parts)
