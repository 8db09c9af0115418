"""Nobody pays twice, wherever and why ever the payment is cancelled."""

from __future__ import annotations

import pytest
from trio.testing import MockClock

from sepp_trio.testing import Cause, SweepRun, cancellation_sweep

from .shop import ORDER, Shop


@pytest.mark.parametrize("by", ["lease lost", "takeover", "shutdown", "timeout", "drain"])
async def test_an_order_is_charged_and_booked_once(
    by: Cause, shop: Shop, autojump_clock: MockClock
) -> None:
    def invariant(run: SweepRun) -> None:
        assert len(shop.provider.charges) <= 1
        assert shop.ledger.revenue() == ORDER.cents * len(shop.ledger.payments())
        if run.settled:
            assert shop.ledger.payments() == {ORDER.number: 1}

    await cancellation_sweep(
        shop.charge,
        ORDER.payload(),
        setup=shop.start_over,
        invariant=invariant,
        by=by,
        cancels=2,
    )
