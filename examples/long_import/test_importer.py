"""The airports of the world are imported once, whatever comes in between."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from sepp_trio import EnqueueRequest, Payload, Worker
from sepp_trio.testing import (
    Acked,
    DeadLettered,
    open_recording_broker,
    run_handler,
)

from .importer import COLUMNS
from .inbox import JOB, ROWS, STEP, Inbox


async def test_all_rows_are_imported(inbox: Inbox, autojump_clock: MockClock) -> None:
    outcome = await run_handler(inbox.import_file, JOB, lease_duration=30)
    assert outcome == Acked()
    assert inbox.airports.rows() == inbox.rows
    assert len(outcome.extends) == ROWS / STEP


async def test_a_second_delivery_adds_nothing(inbox: Inbox, autojump_clock: MockClock) -> None:
    for attempt in (1, 2):
        outcome = await run_handler(inbox.import_file, JOB, attempt=attempt)
        assert outcome == Acked()
    assert inbox.airports.rows() == inbox.rows


async def test_no_row_is_doubled_if_two_deliveries_run_at_once(inbox: Inbox) -> None:
    async with open_recording_broker() as broker, broker.open_client() as client:
        worker = Worker(client, ["imports"], lease_duration=30)
        worker.handle("import", inbox.import_file)
        for _ in range(4):
            await client.enqueue(EnqueueRequest("imports", "import", JOB, max_attempts=20))
        async with trio.open_nursery() as nursery:
            await nursery.start(worker.run)
            with trio.fail_after(30):
                await broker.settled()
            worker.shutdown()
        assert broker.jobs("imports").acked == broker.jobs("imports")
    assert inbox.airports.rows() == inbox.rows


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["AAAA,Aero"], "bad.csv: line 2 has too few columns, or too many"),
        (["AAAA,Aero,Leoti,US,more"], "bad.csv: line 2 has too few columns, or too many"),
        (["AAAA,Aero,Leoti,US", '"'], "bad.csv: cannot read it: unexpected end of data"),
    ],
)
async def test_a_bad_file_is_given_up(
    lines: list[str], reason: str, inbox: Inbox, autojump_clock: MockClock
) -> None:
    text = "\n".join([",".join(COLUMNS), *lines])
    (inbox.directory / "bad.csv").write_text(text, encoding="utf-8")
    outcome = await run_handler(inbox.import_file, Payload(b"bad.csv", "text"))
    assert outcome == DeadLettered(reason)


@pytest.mark.parametrize("name", ["none.csv", "../airports.csv"])
async def test_a_file_that_is_not_there_is_given_up(
    name: str, inbox: Inbox, autojump_clock: MockClock
) -> None:
    outcome = await run_handler(inbox.import_file, Payload(name.encode(), "text"))
    assert isinstance(outcome, DeadLettered)
    assert inbox.airports.rows() == []
