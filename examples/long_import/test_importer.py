"""The airports of the world are imported once, whatever comes in between."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from sepp_trio import EnqueueRequest, Payload, SeppClient
from sepp_trio.testing import (
    Acked,
    DeadLettered,
    RecordingBroker,
    WorkerStarter,
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


async def test_no_row_is_doubled_if_deliveries_run_at_once(
    inbox: Inbox,
    sepp_broker: RecordingBroker,
    sepp_client: SeppClient,
    sepp_worker: WorkerStarter,
    autojump_clock: MockClock,
) -> None:
    for _ in range(4):
        await sepp_client.enqueue(EnqueueRequest("imports", "import", JOB, max_attempts=20))
    await sepp_worker("imports", {"import": inbox.import_file}, lease_duration=30)
    await sepp_broker.settled()
    assert len(sepp_broker.jobs("imports").acked) == 4
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
