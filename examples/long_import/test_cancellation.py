"""No row is lost, none is doubled, wherever and why ever the import is cancelled."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from sepp_trio.testing import Cause, SweepRun, cancellation_sweep

from .inbox import JOB, Inbox


@pytest.mark.parametrize("by", ["lease lost", "takeover", "shutdown", "timeout", "drain"])
async def test_no_row_is_lost_or_doubled_wherever_it_is_cancelled(
    by: Cause, inbox: Inbox, autojump_clock: MockClock
) -> None:
    def invariant(run: SweepRun) -> None:
        rows = inbox.airports.rows()
        assert rows == inbox.rows[: len(rows)]
        assert rows == inbox.rows or not run.settled

    await cancellation_sweep(
        inbox.import_file, JOB, setup=inbox.start_over, invariant=invariant, by=by
    )
