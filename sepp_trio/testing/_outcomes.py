"""What became of one delivery of a job: the results of ``run_handler``.

Two outcomes are equal if the server would say so: ``Acked() == Acked()``, and ``Retried`` by its
delay and reason. What else is known of the delivery is there to be looked at.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, fields
from typing import TypeAlias

from sepp_trio.types import DeadLetterCause

from ._history import JobEvent
from ._proxy import Happening


@dataclass(frozen=True, slots=True)
class Extend:
    """An extend that the server granted, the heartbeat's or the handler's own: when, for how
    many seconds it asked, and until when it was granted, on Trio's clock."""

    at: float
    asked: float
    until: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Delivery:
    """What is known of every delivery.

    ``error`` is what the handler raised, ``cancel_reason`` why the worker cancelled it (as in
    ``JobCtx``), ``duration`` how many seconds it ran on Trio's clock (``None`` if it never
    began). ``events`` is the job's whole story, ``happened`` what the fault plan did.
    """

    attempt: int = field(default=1, compare=False)
    extends: tuple[Extend, ...] = field(default=(), compare=False)
    error: BaseException | None = field(default=None, compare=False)
    cancel_reason: str | None = field(default=None, compare=False)
    duration: float | None = field(default=None, compare=False)
    events: tuple[JobEvent, ...] = field(default=(), compare=False, repr=False)
    happened: tuple[Happening, ...] = field(default=(), compare=False, repr=False)

    def __repr__(self) -> str:
        positional: tuple[str, ...] = self.__match_args__
        shown = [repr(getattr(self, name)) for name in positional]
        for item in fields(self):
            value = getattr(self, item.name)
            if item.repr and item.name not in positional and value != item.default:
                shown.append(f"{item.name}={value!r}")
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, slots=True, repr=False)
class Acked(Delivery):
    """The job is done."""


@dataclass(frozen=True, slots=True, repr=False)
class Retried(Delivery):
    """The job was nacked and will be delivered again, ``delay`` seconds later."""

    delay: float
    reason: str | None


@dataclass(frozen=True, slots=True, repr=False)
class DeadLettered(Delivery):
    """The job was nacked and given up: rejected, or it was the last attempt; or its last lease
    ended before the worker could run it (then there is no reason)."""

    reason: str | None
    _: KW_ONLY
    cause: DeadLetterCause = field(default=DeadLetterCause.UNSPECIFIED, compare=False)


@dataclass(frozen=True, slots=True, repr=False)
class LeaseLost(Delivery):
    """The lease ended before the worker could say what became of the job."""

    reason: str


Outcome: TypeAlias = Acked | Retried | DeadLettered | LeaseLost
