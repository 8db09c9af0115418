"""Mistakes that the sweep was not written for: whoever wrote these handlers had not read its code.

Each is a handler that passes its ordinary test, was seen in real services, and loses or doubles
work when a cancel comes at the wrong moment. The sweep must find it, and point at the line.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from sepp_trio import JobCtx, Payload
from sepp_trio.testing import Acked, SweepRun, run_handler
from tests.testing.sweeping import failure_of

CAUSES = pytest.mark.parametrize("by", ["lease lost", "shutdown", "timeout"])


class Bank:
    """A payment provider that charges once per key; answers take their time."""

    def __init__(self) -> None:
        self.charges: dict[str, int] = {}

    async def charge(self, key: str, cents: int) -> None:
        await trio.sleep(0.05)  # the request is on its way
        self.charges.setdefault(key, cents)
        await trio.sleep(0.05)  # its answer is


class KeyPerAttempt:
    """Charges under a key that is another one for each delivery: idempotent only by looks."""

    def __init__(self) -> None:
        self.bank = Bank()

    def reset(self) -> None:
        self.bank = Bank()

    async def handle(self, payload: Payload | None, ctx: JobCtx) -> None:
        await self.bank.charge(f"{ctx.id}/{ctx.attempt}", 500)

    def charged_once(self, run: SweepRun) -> None:
        assert sum(self.bank.charges.values()) <= 500
        if run.settled:
            assert sum(self.bank.charges.values()) == 500


class Pool:
    """A pool of one database connection."""

    def __init__(self) -> None:
        self.free = trio.Semaphore(1)
        self.rows: list[str] = []

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[list[str]]:
        await self.free.acquire()
        yield self.rows
        self.free.release()  # not in a finally block: a cancel in the body keeps the connection


class ConnectionKept:
    """Gives its connection back only if all goes well; the next delivery waits for ever."""

    def __init__(self) -> None:
        self.pool = Pool()

    def reset(self) -> None:
        self.pool = Pool()

    async def handle(self, payload: Payload | None, ctx: JobCtx) -> None:
        async with self.pool.connection() as rows:
            await trio.sleep(0.05)
            if ctx.id not in rows:
                rows.append(ctx.id)


class Store:
    """An object store in which a document moves from the inbox to the archive."""

    def __init__(self) -> None:
        self.inbox = {"invoice.pdf": b"%PDF"}
        self.archive: dict[str, bytes] = {}

    async def take(self, name: str) -> bytes | None:
        await trio.sleep(0.05)
        return self.inbox.pop(name, None)

    async def put(self, name: str, data: bytes) -> None:
        await trio.sleep(0.05)
        self.archive[name] = data


class TakenBeforeStored:
    """Takes the document out before it is stored elsewhere, and thinks "not there" means done."""

    def __init__(self) -> None:
        self.store = Store()

    def reset(self) -> None:
        self.store = Store()

    async def handle(self, payload: Payload | None, ctx: JobCtx) -> None:
        data = await self.store.take("invoice.pdf")
        if data is not None:
            await self.store.put("invoice.pdf", data)

    def not_lost(self, run: SweepRun) -> None:
        if run.settled:
            assert self.store.archive == {"invoice.pdf": b"%PDF"}


class LostTail:
    """Collects rows and writes the rest in a finally block, which a cancel cuts short; the mark
    of how far it came is set when a row is read, not when it is written."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.position = 0
        self.written: list[int] = []

    async def write(self, rows: list[int]) -> None:
        await trio.sleep(0.05)
        self.written += rows

    async def handle(self, payload: Payload | None, ctx: JobCtx) -> None:
        rows: list[int] = []
        try:
            while self.position < 5:
                await trio.sleep(0.01)  # the row comes in
                rows.append(self.position)
                self.position += 1
                if len(rows) == 2:
                    await self.write(rows)
                    rows = []
        finally:
            await self.write(rows)

    def no_row_is_lost_or_doubled(self, run: SweepRun) -> None:
        if run.settled:
            assert sorted(self.written) == [0, 1, 2, 3, 4]


class SumOfParts:
    """Adds up what its tasks bring in one total, which stays when the handler is cancelled."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.total = 0

    async def handle(self, payload: Payload | None, ctx: JobCtx) -> None:
        async def part(value: int) -> None:
            await trio.sleep(0.05 * value)
            self.total += value

        async with trio.open_nursery() as nursery:
            for value in (1, 2, 3):
                nursery.start_soon(part, value)

    def adds_up(self, run: SweepRun) -> None:
        if run.settled:
            assert self.total == 6


async def test_all_of_them_pass_an_ordinary_test() -> None:
    for wrong in (KeyPerAttempt(), ConnectionKept(), TakenBeforeStored(), LostTail(), SumOfParts()):
        assert await run_handler(wrong.handle) == Acked()


@CAUSES
async def test_a_key_that_changes_with_the_attempt_is_found(by: str) -> None:
    wrong = KeyPerAttempt()
    failure = await failure_of(wrong.handle, invariant=wrong.charged_once, setup=wrong.reset, by=by)
    assert failure.line is not None
    assert "its answer is" in failure.line.text


@CAUSES
async def test_a_connection_that_is_not_given_back_is_found(by: str) -> None:
    wrong = ConnectionKept()
    failure = await failure_of(wrong.handle, setup=wrong.reset, by=by)
    assert failure.line is not None
    assert "await self.free.acquire()" in failure.line.text
    assert [delivery.outcome for delivery in failure.history] == ["delivered again"] * 2


@CAUSES
async def test_a_document_that_is_taken_before_it_is_stored_is_found(by: str) -> None:
    wrong = TakenBeforeStored()
    failure = await failure_of(wrong.handle, invariant=wrong.not_lost, setup=wrong.reset, by=by)
    assert failure.line is not None
    assert failure.line.function == "Store.put"
    assert [delivery.outcome for delivery in failure.history] == ["delivered again", "acked"]


@CAUSES
async def test_rows_that_a_cleanup_cannot_write_any_more_are_found(by: str) -> None:
    wrong = LostTail()
    failure = await failure_of(
        wrong.handle, invariant=wrong.no_row_is_lost_or_doubled, setup=wrong.reset, by=by
    )
    assert failure.line is not None
    assert "the row comes in" in failure.line.text


@CAUSES
async def test_parts_that_are_added_twice_are_found(by: str) -> None:
    wrong = SumOfParts()
    failure = await failure_of(wrong.handle, invariant=wrong.adds_up, setup=wrong.reset, by=by)
    assert failure.line is not None
    assert "0.05 * value" in failure.line.text
