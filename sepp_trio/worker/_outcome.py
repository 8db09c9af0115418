"""What becomes of a job, judged by how its handler ended."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from ..errors import HandlerError
from ..types import RetryDirective

NOW = RetryDirective.after(0)
"""Deliver again at once, whatever the queue's retry policy says."""

_LONGEST_TEXT = 500
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]+")
_LONGEST_DELAY = 60

# A group of the user's own may have redefined the attribute.
_members: Any = BaseExceptionGroup.__dict__["exceptions"].__get__


class Failure(NamedTuple):
    """A nack: what is to become of the job, and why."""

    directive: RetryDirective
    reason: str
    expected: bool
    """The handler said so itself: its traceback is of no interest."""


def growing_delay(attempt: int) -> RetryDirective:
    """2, 4, 8 … 60 seconds: for jobs that nobody here can handle, or whose handler is broken."""
    return RetryDirective.after(2 ** min(attempt, 6) if attempt < 6 else _LONGEST_DELAY)


def judge(error: BaseException, attempt: int) -> Failure:
    """The nack for what a handler raised.

    ``HandlerError`` decides, also inside groups: permanent before retry-after (the longest)
    before retry. An ``Exception`` is a retry by the queue's policy. What is no ``Exception``
    is not expected to pass soon: it gets a delay.
    """
    verdicts = [leaf for leaf in leaves(error) if isinstance(leaf, HandlerError)]
    if verdicts:
        verdict = max(verdicts, key=_weight)
        return Failure(verdict.directive, _text(verdict), expected=True)
    directive = RetryDirective.DEFAULT if isinstance(error, Exception) else growing_delay(attempt)
    return Failure(directive, f"handler raised {describe(error)}", expected=False)


def _weight(verdict: HandlerError) -> tuple[int, float]:
    directive = verdict.directive
    if directive.kind == "dead_letter":
        return 2, 0.0
    return (0, 0.0) if directive.delay is None else (1, directive.delay)


def leaves(error: BaseException) -> list[BaseException]:
    """The exceptions in a group, however deep; or the one that is none."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    found: list[BaseException] = []
    waiting: list[BaseException] = [error]
    while waiting:
        current = waiting.pop()
        if isinstance(current, BaseExceptionGroup):
            waiting.extend(reversed(_members(current)))
        else:
            found.append(current)
    return found


def reason_to_leave(error: BaseException) -> BaseException | None:
    """The SystemExit or KeyboardInterrupt in what a handler raised."""
    for leaf in leaves(error):
        if isinstance(leaf, (SystemExit, KeyboardInterrupt)):
            return leaf
    return None


def describe(error: BaseException) -> str:
    """Kind and text of an exception in one short line; of a group, those of its first member."""
    members = leaves(error)
    first = members[0]
    others = f" (and {len(members) - 1} more)" if len(members) > 1 else ""
    text = _CONTROL.sub(" ", _text(first)[: _LONGEST_TEXT * 2]).strip()
    if len(text) > _LONGEST_TEXT:
        text = text[:_LONGEST_TEXT] + "…"
    kind = type(first).__name__
    return f"{kind}: {text}{others}" if text else f"{kind}{others}"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "(its text cannot be read)"
