"""How far a lease's holder is, and what became of its ack or nack."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Phase(Enum):
    """How far the holder is with its job."""

    HELD = 1
    SETTLING = 2
    """An ack or nack is on its way."""
    SETTLED = 3
    """Nothing more is sent."""


class Verdict(Enum):
    """What became of an ack or nack."""

    DONE = "done"
    DONE_BEFORE = "done before"
    """The server does not know the job any more, and an earlier try may have reached it."""
    LOST = "lost"
    FAILED = "failed"
    """It cannot be sent, or was not answered while the lease lasted."""


@dataclass(slots=True)
class Beats:
    """Heartbeats of one holder, or of all: extends sent, and those that failed in passing."""

    sent: int = 0
    failed: int = 0
