"""A payment handler that charges each order once, however often and wherever it is cut short.

    payments = Payments(ledger, provider)
    worker.handle("charge", payments.charge, timeout=60)

Three things do it. The order's number is the provider's idempotency key: an order whose answer
was lost is asked for again, not charged again. The payment and its booking are one transaction
of the ledger. And the ledger is asked first, because a provider remembers its keys for some
hours, and a ledger for ever.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import trio

from sepp_trio import HandlerError, JobCtx, Payload

from .provider import CardDeclined, Charge, ProviderBusy


class Provider(Protocol):
    """What we need of a payment provider."""

    async def charge(self, card: str, cents: int, *, idempotency_key: str) -> Charge: ...


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be paid: the payload of a job."""

    number: str
    card: str
    cents: int

    def payload(self) -> Payload:
        return Payload.json({"number": self.number, "card": self.card, "cents": self.cents})

    @classmethod
    def read(cls, payload: Payload | None) -> Order:
        """The inverse. Whatever else a payload says, it will say the next time, too."""
        try:
            match payload.decode_json() if payload else None:
                case {"number": str(number), "card": str(card), "cents": int(cents)} if cents > 0:
                    return cls(number, card, cents)
        except ValueError:
            pass  # it is not even JSON
        raise HandlerError.permanent("the payload is no order")


class Ledger:
    """What was paid, and how much that makes, in SQLite. Blocks on the disk; for any thread."""

    def __init__(self, path: str = ":memory:") -> None:
        self._database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._lock = threading.Lock()
        with self._transaction() as database:
            database.execute("CREATE TABLE IF NOT EXISTS payments (number PRIMARY KEY, charge)")
            database.execute("CREATE TABLE IF NOT EXISTS revenue (cents)")
            database.execute(
                "INSERT INTO revenue SELECT 0 WHERE NOT EXISTS (SELECT * FROM revenue)"
            )

    def is_paid(self, number: str) -> bool:
        with self._transaction() as database:
            return _is_paid(number, database)

    def book(self, number: str, charge: Charge) -> None:
        """Note that an order is paid. Nothing happens if it is in the book already."""
        with self._transaction() as database:
            if not _is_paid(number, database):
                database.execute("INSERT INTO payments VALUES (?, ?)", (number, charge.id))
                database.execute("UPDATE revenue SET cents = cents + ?", (charge.cents,))

    def payments(self) -> dict[str, int]:
        """The number of the charge of each order that is paid."""
        with self._transaction() as database:
            return dict(database.execute("SELECT number, charge FROM payments"))

    def revenue(self) -> int:
        """Cents."""
        with self._transaction() as database:
            return sum(cents for (cents,) in database.execute("SELECT cents FROM revenue"))

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._database.execute("BEGIN IMMEDIATE")
            with self._database:
                yield self._database


def _is_paid(number: str, database: sqlite3.Connection) -> bool:
    row = database.execute("SELECT 1 FROM payments WHERE number = ?", (number,)).fetchone()
    return row is not None


class Payments:
    """Charges orders, and books what was paid."""

    def __init__(self, ledger: Ledger, provider: Provider) -> None:
        self.ledger = ledger
        self.provider = provider

    async def charge(self, payload: Payload | None, ctx: JobCtx) -> None:
        """The handler. The job's payload is an `Order`."""
        order = Order.read(payload)
        if await trio.to_thread.run_sync(self.ledger.is_paid, order.number):
            return
        try:
            charge = await self.provider.charge(
                order.card, order.cents, idempotency_key=order.number
            )
        except CardDeclined as error:
            raise HandlerError.permanent("the card was declined") from error
        except ProviderBusy as error:
            raise HandlerError.retry_after("the provider is busy", 60) from error
        await trio.to_thread.run_sync(self.ledger.book, order.number, charge)
