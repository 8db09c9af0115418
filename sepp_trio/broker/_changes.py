"""What the engine has changed, told to an observer after the commit; for histories in tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeAlias

from ._clock import BrokerClock

ChangeKind: TypeAlias = Literal[
    "enqueued",
    "found",
    "ready",
    "leased",
    "given back",
    "extended",
    "acked",
    "nacked",
    "expired",
    "dead-lettered",
    "drained",
    "cleared",
]


class Change(NamedTuple):
    """One step of one job.

    ``attempt`` is the delivery that it belongs to, the coming one if none runs. ``at`` is when
    the lease ends, or when the job is due; ``asked_ms`` the lease that was asked for; ``body``
    the message of a new job. Times are milliseconds since the epoch. ``"cleared"`` is of no job:
    all are gone.
    """

    kind: ChangeKind
    job_id: bytes
    attempt: int
    at: int | None = None
    worker_id: str | None = None
    asked_ms: int | None = None
    reason: str | None = None
    cause: int | None = None
    body: bytes | None = None


Observer: TypeAlias = Callable[[Sequence[Change], int, BrokerClock], None]
"""Called in the loop after a commit that has changed something, with the broker's time in it,
before its callers are answered; must not raise."""
