"""Where the demo imports to: an SQLite file, filled chunk by chunk, and the proof afterwards.

The import is idempotent because a chunk's rows and its mark in `commits` are written in one
transaction, which first looks whether the mark is there. A worker may be killed at any moment
and a chunk may be delivered twice: either all of it is in the file and marked, or nothing of it.

No constraint forbids a second mark or a second copy of a row: if the rule above were broken, the
file would show it, and `prove` would count it.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ._errors import DemoError
from ._source import digest_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from ._source import Chunk, Source

_LOCK_PATIENCE = 10.0
"""Seconds to wait for another connection's transaction: a killed worker's lock goes with it."""


class Target:
    """The file being filled. Use from one thread at a time; blocks on the disk."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self._database = sqlite3.connect(
            path, timeout=_LOCK_PATIENCE, isolation_level=None, check_same_thread=False
        )
        names = ", ".join(f"{_quoted(name)} TEXT NOT NULL" for name in columns)
        self._insert_row = (
            f"INSERT INTO airports VALUES (?{', ?' * len(columns)})"  # the number and the fields
        )
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = FULL")
        self._database.execute(
            f"CREATE TABLE IF NOT EXISTS airports (row INTEGER NOT NULL, {names})"
        )
        self._database.execute(
            "CREATE TABLE IF NOT EXISTS commits"
            " (start INTEGER NOT NULL, stop INTEGER NOT NULL, attempt INTEGER NOT NULL)"
        )
        self._database.execute("CREATE INDEX IF NOT EXISTS commit_of ON commits (start)")

    def import_chunk(self, chunk: Chunk, rows: Sequence[tuple[str, ...]], attempt: int) -> bool:
        """Write the chunk, on disk when this returns; false where it had been written before."""
        database = self._database
        # IMMEDIATE takes the write lock before the look, so that nobody gets between the two.
        database.execute("BEGIN IMMEDIATE")
        try:
            if database.execute("SELECT 1 FROM commits WHERE start = ?", (chunk.start,)).fetchone():
                database.execute("ROLLBACK")
                return False
            numbered = enumerate(rows, chunk.start)
            database.executemany(self._insert_row, ((number, *row) for number, row in numbered))
            database.execute(
                "INSERT INTO commits VALUES (?, ?, ?)", (chunk.start, chunk.stop, attempt)
            )
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise
        return True

    def close(self) -> None:
        self._database.close()


@dataclass(frozen=True, slots=True)
class Proof:
    """What the finished file holds, beside what it should hold."""

    rows: int
    """Rows in the file."""
    distinct_rows: int
    """Different row numbers among them."""
    digest: str
    """SHA-256 of the file's rows."""
    source_digest: str
    """SHA-256 of the source's rows."""
    chunks_by_commits: Mapping[int, int]
    """How many chunks were committed that many times; {1: all} is as it should be."""

    @property
    def holds(self) -> bool:
        """Every row of the source is there exactly once, every chunk was committed once."""
        return (
            self.digest == self.source_digest
            and self.rows == self.distinct_rows
            and set(self.chunks_by_commits) == {1}
        )


def prove(path: Path, source: Source, chunks: Sequence[Chunk]) -> Proof:
    """Read the whole file back and compare it with the source.

    Raises `DemoError` where it cannot be read.
    """
    try:
        with closing(sqlite3.connect(path, timeout=_LOCK_PATIENCE)) as database:
            rows, distinct = database.execute(
                "SELECT count(*), count(DISTINCT row) FROM airports"
            ).fetchone()
            commits = Counter({(chunk.start, chunk.stop): 0 for chunk in chunks})
            commits.update(database.execute("SELECT start, stop FROM commits"))
            return Proof(
                rows=rows,
                distinct_rows=distinct,
                digest=digest_rows(_stored_rows(database)),
                source_digest=source.digest(),
                chunks_by_commits=dict(sorted(Counter(commits.values()).items())),
            )
    except sqlite3.Error as error:
        raise DemoError(f"cannot read {path} back: {error}") from error


def _stored_rows(database: sqlite3.Connection) -> Iterator[tuple[int, tuple[str, ...]]]:
    for number, *fields in database.execute("SELECT * FROM airports ORDER BY row"):
        yield number, tuple(fields)


def _quoted(name: str) -> str:
    """A column's name as SQL takes it: the header is the package's, not ours."""
    return '"' + name.replace('"', '""') + '"'
