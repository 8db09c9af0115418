"""Everything that a payment touches, for the tests."""

from __future__ import annotations

from sepp_trio import JobCtx, Payload

from .handler import Ledger, Order, Payments
from .provider import FakeProvider

ORDER = Order("2026-117", card="4111 1111 1111 1111", cents=4200)


class Shop:
    """A ledger and a provider; `charge` is the handler between them."""

    def __init__(self, payments: type[Payments] = Payments) -> None:
        self._payments = payments
        self.ledger = Ledger()
        self.provider = FakeProvider()

    async def charge(self, payload: Payload | None, ctx: JobCtx) -> None:
        await self._payments(self.ledger, self.provider).charge(payload, ctx)

    def start_over(self) -> None:
        """An empty ledger, and a provider that has charged nobody."""
        self.close()
        self.ledger = Ledger()
        self.provider = FakeProvider()

    def close(self) -> None:
        self.ledger.close()
