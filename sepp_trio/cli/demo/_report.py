"""How the demo went: for people in a few lines, for scripts as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._progress import Console
    from ._target import Proof


@dataclass(frozen=True, slots=True)
class Report:
    """Everything the demo found out."""

    proof: Proof
    jobs: int
    """Chunk jobs enqueued."""
    redelivered_chunks: int
    """Chunks that came back after the worker that held them was killed."""
    redeliveries: int
    already_committed: int
    """Redelivered chunks that had been committed before the kill and were not written again."""
    jobs_left: int
    """Jobs still in the queue, or dead, after the import; should be none."""
    seconds: float

    @property
    def succeeded(self) -> bool:
        return self.proof.holds and self.jobs_left == 0

    def to_json(self) -> str:
        return json.dumps({"ok": self.succeeded, **asdict(self)})

    def tell(self, console: Console) -> None:
        proof = self.proof
        if proof.holds:
            console.line("proof", f"{proof.rows:,} rows, each there exactly once")
            console.line("", f"sha256 of source and database: {proof.digest[:16]}… both")
        else:
            console.line("FAILED", f"{proof.rows:,} rows, {proof.distinct_rows:,} different ones")
            console.line("", f"sha256 of the source   {proof.source_digest}")
            console.line("", f"sha256 of the database {proof.digest}")
        for commits, chunks in proof.chunks_by_commits.items():
            console.line("commits", f"{_counted(chunks, 'chunk')} committed {_times(commits)}")
        if self.redelivered_chunks:
            console.line(
                "redelivery",
                f"{_counted(self.redelivered_chunks, 'chunk')} of the killed worker came back as"
                " attempt 2 when the leases ran out;",
            )
            console.line(
                "",
                f"{self.already_committed} had been committed already and were not written again",
            )
        if self.jobs_left:
            console.line("FAILED", f"{_counted(self.jobs_left, 'job')} left in the queue")
        console.line(
            "done",
            f"{_counted(self.jobs, 'job')}, {self.redeliveries} redelivered,"
            f" {self.seconds:.1f} seconds",
        )


def _counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _times(number: int) -> str:
    return {0: "NEVER", 1: "exactly once"}.get(number, f"{number} TIMES")
