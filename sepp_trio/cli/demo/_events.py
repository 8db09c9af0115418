"""What a worker process tells the demo, and what the demo learns from it.

A worker says on its standard output that it is ready, and then writes one line per event: the
kind, the chunk's first row and the attempt that the job was on. Nothing here takes part in the
import: a worker that is killed loses what it had not yet said, and the proof reads the file, not
this.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, cast

from ._errors import DemoError

Kind: TypeAlias = Literal["began", "committed", "skipped"]
READY: Final = "ready"
_KINDS: Final = ("began", "committed", "skipped")


@dataclass(frozen=True, slots=True)
class Event:
    """One chunk was begun, committed, or found committed already."""

    kind: Kind
    start: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.kind} {self.start} {self.attempt}"

    @classmethod
    def parse(cls, line: str) -> Event:
        """The inverse of `str`; raises `DemoError` for anything else."""
        match line.split():
            case [kind, start, attempt] if (
                kind in _KINDS and start.isdecimal() and attempt.isdecimal()
            ):
                return cls(cast("Kind", kind), int(start), int(attempt))
        raise DemoError(f"a worker said something unexpected: {line!r}")


@dataclass(slots=True)
class Tally:
    """What all workers said so far."""

    total: int
    """Chunks in the import."""
    settled: set[int] = field(default_factory=set)
    """Chunks, by first row, that a worker committed or found committed."""
    redelivered: set[int] = field(default_factory=set)
    """Chunks that were delivered once more: begun on attempt 2 or later."""
    skipped: set[int] = field(default_factory=set)
    """Chunks that had been committed by an earlier delivery and were not written again."""
    redeliveries: int = 0
    """Deliveries beyond each chunk's first."""
    _under_way: set[int] = field(default_factory=set)

    def add(self, event: Event) -> None:
        if event.kind == "began":
            self._under_way.add(event.start)
            if event.attempt > 1:
                self.redelivered.add(event.start)
                self.redeliveries += 1
            return
        self._under_way.discard(event.start)
        self.settled.add(event.start)
        if event.kind == "skipped":
            self.skipped.add(event.start)

    @property
    def done(self) -> int:
        return len(self.settled)

    @property
    def complete(self) -> bool:
        return self.done == self.total

    @property
    def half_way(self) -> bool:
        """At least half is in, and a worker has a chunk in hand: the moment for a crash."""
        return 2 * self.done >= self.total and bool(self._under_way)

    def worker_died(self) -> int:
        """Forget what the dead worker had in hand; gives how many chunks that was."""
        in_hand = len(self._under_way)
        self._under_way.clear()
        return in_hand
