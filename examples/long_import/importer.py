"""A long import as one job: a CSV file into a table, step by step, and no row twice or never.

    importer = Importer(Path("inbox"), Airports(Path("airports.db")))
    worker.handle("import", importer.import_file, max_in_flight=1)

The rows of a step and the mark that says how far the import has come are written in one
transaction, which first looks whether the mark is where this delivery takes it to be. So a
delivery that was cut short is continued by the next one, and one that has lost its lease, but not
yet ended, gets nothing in beside the one that has it now.

The lease is extended after each step, and not by the worker's auto-extend: an import that hangs
loses its job. Each cut costs an attempt: enqueue the job with a `max_attempts` that is larger than
the number of deploys that it may live through.
"""

from __future__ import annotations

import csv
import sqlite3
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import trio

from sepp_trio import HandlerError, JobCtx, Payload

COLUMNS = ("icao", "name", "city", "country")
Row: TypeAlias = tuple[str, ...]


class Airports:
    """The table that is filled, in SQLite. Blocks on the disk; usable from any thread."""

    def __init__(self, path: Path | str = ":memory:") -> None:
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._lock = threading.Lock()
        self._database.execute("PRAGMA journal_mode = WAL")
        with self.transaction() as database:
            database.execute(f"CREATE TABLE IF NOT EXISTS airports ({', '.join(COLUMNS)})")
            database.execute("CREATE TABLE IF NOT EXISTS marks (file PRIMARY KEY, rows)")

    def imported(self, file: str) -> int:
        """How many rows of the file are in: its mark."""
        with self.transaction() as database:
            return _mark_of(file, database)

    def add(self, file: str, start: int, rows: Sequence[Row]) -> bool:
        """Add rows of the file, the first of which is number `start`, and move its mark.

        False, and nothing done, if the mark is not at `start`.
        """
        with self.transaction() as database:
            if _mark_of(file, database) != start:
                return False
            database.executemany("INSERT INTO airports VALUES (?, ?, ?, ?)", rows)
            mark = (file, start + len(rows))
            database.execute("INSERT OR REPLACE INTO marks VALUES (?, ?)", mark)
        return True

    def rows(self) -> list[Row]:
        """All rows, in the order in which they came."""
        with self.transaction() as database:
            return database.execute("SELECT * FROM airports ORDER BY rowid").fetchall()

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All of the block, or nothing of it; nobody else gets between its statements."""
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")  # the write lock, before the first look
            with self._database:
                yield self._database


def _mark_of(file: str, database: sqlite3.Connection) -> int:
    found = database.execute("SELECT rows FROM marks WHERE file = ?", (file,)).fetchone()
    return found[0] if found else 0


class BadFile(Exception):
    """The file is not what was promised. No repetition will help."""


def steps_of(path: Path, start: int, size: int) -> Generator[list[Row]]:
    """The file's rows from number `start` on, `size` of them at a time. Blocks on the disk.

    Raises `BadFile`, with the number of the line.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            rows = (_row_of(record, reader.line_num) for record in reader)
            for _ in islice(rows, start):
                pass
            while step := list(islice(rows, size)):
                yield step
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadFile(f"cannot read it: {error}") from error


def _row_of(record: dict[str | None, str | None], line: int) -> Row:
    values = [record.get(column) for column in COLUMNS]
    row = tuple(value for value in values if value is not None)
    if len(row) < len(COLUMNS) or None in record:
        raise BadFile(f"line {line} has too few columns, or too many")
    return row


class Importer:
    """Imports files of a directory, `step` rows at a time, each within `step_timeout` seconds."""

    def __init__(
        self, directory: Path, airports: Airports, *, step: int = 500, step_timeout: float = 30
    ) -> None:
        self.directory = directory
        self.airports = airports
        self.step = step
        self.step_timeout = step_timeout

    async def import_file(self, payload: Payload | None, ctx: JobCtx) -> None:
        """The handler. The job's payload is the name of the file."""
        name = payload.data.decode() if payload else ""
        if not name or Path(name).name != name:
            raise HandlerError.permanent(f"not the name of a file: {name!r}")
        try:
            await self._import(name, ctx)
        except BadFile as error:
            raise HandlerError.permanent(f"{name}: {error}") from error

    async def _import(self, name: str, ctx: JobCtx) -> None:
        done = await trio.to_thread.run_sync(self.airports.imported, name)
        with closing(steps_of(self.directory / name, done, self.step)) as steps:
            while step := await trio.to_thread.run_sync(next, steps, None):
                if not await trio.to_thread.run_sync(self.airports.add, name, done, step):
                    raise HandlerError.retry("another delivery of this job is at work")
                done += len(step)
                await ctx.extend(self.step_timeout)
