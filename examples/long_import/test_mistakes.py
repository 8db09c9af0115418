"""What the sweep is good for: wrong variants of the import, and how each comes to light."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from sepp_trio import JobCtx, Payload
from sepp_trio.testing import SweepFailure, SweepRun, cancellation_sweep

from .importer import Airports, Importer, Row, steps_of
from .inbox import JOB, Inbox


async def sweep(directory: Path, importer: type[Importer]) -> SweepFailure:
    """What test_cancellation.py would say of this handler."""
    with closing(Inbox(directory, importer)) as inbox:

        def invariant(run: SweepRun) -> None:
            rows = inbox.airports.rows()
            assert rows == inbox.rows[: len(rows)], "not the head of the file"
            assert rows == inbox.rows or not run.settled, "rows are missing"

        with pytest.raises(SweepFailure) as failure:
            await cancellation_sweep(
                inbox.import_file, JOB, setup=inbox.start_over, invariant=invariant
            )
    return failure.value


class MarksInATransactionOfItsOwn(Importer):
    """Commits outside of the transaction: first the rows, then how far the import has come."""

    async def _import(self, name: str, ctx: JobCtx) -> None:
        done = await trio.to_thread.run_sync(self.airports.imported, name)
        with closing(steps_of(self.directory / name, done, self.step)) as steps:
            while step := await trio.to_thread.run_sync(next, steps, None):
                await trio.to_thread.run_sync(insert, self.airports, step)
                done += len(step)
                await trio.to_thread.run_sync(move_mark, self.airports, name, done)


def insert(airports: Airports, rows: Sequence[Row]) -> None:
    with airports.transaction() as database:
        database.executemany("INSERT INTO airports VALUES (?, ?, ?, ?)", rows)


def move_mark(airports: Airports, file: str, rows: int) -> None:
    with airports.transaction() as database:
        database.execute("INSERT OR REPLACE INTO marks VALUES (?, ?)", (file, rows))


async def test_a_commit_outside_of_the_transaction(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    failure = await sweep(tmp_path, MarksInATransactionOfItsOwn)
    assert "not the head of the file" in failure.problem  # rows are there twice
    assert [line.text for line in failure.lines] == [
        "await trio.to_thread.run_sync(move_mark, self.airports, name, done)"
    ]


class CatchesEverything(Importer):
    """Swallows its cancel: "a bad file must not stop the worker"."""

    async def import_file(self, payload: Payload | None, ctx: JobCtx) -> None:
        try:
            await super().import_file(payload, ctx)
        except BaseException:
            logging.getLogger("import").debug("cannot import %s", payload)


async def test_a_swallowed_cancel(tmp_path: Path, autojump_clock: MockClock) -> None:
    failure = await sweep(tmp_path, CatchesEverything)
    assert failure.problem == "the handler swallows its cancel: it returned"
    assert "did not get past" in failure.advice
    assert "in CatchesEverything.import_file" in failure.advice
