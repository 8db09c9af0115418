"""What becomes of a payment."""

from __future__ import annotations

from contextlib import closing

import trio
from hypothesis import given, settings
from trio.testing import MockClock

from sepp_trio import Payload
from sepp_trio.testing import (
    Acked,
    DeadLettered,
    Retried,
    run_handler,
)
from sepp_trio.testing.strategies import payloads

from .shop import ORDER, Shop


async def test_an_order_is_charged_and_booked(shop: Shop, autojump_clock: MockClock) -> None:
    assert await run_handler(shop.charge, ORDER.payload()) == Acked()
    [charge] = shop.provider.charges
    assert (charge.card, charge.cents) == (ORDER.card, ORDER.cents)
    assert shop.ledger.payments() == {ORDER.number: charge.id}
    assert shop.ledger.revenue() == ORDER.cents


async def test_a_declined_card_is_given_up(shop: Shop, autojump_clock: MockClock) -> None:
    shop.provider.declined = frozenset({ORDER.card})
    outcome = await run_handler(shop.charge, ORDER.payload())
    assert outcome == DeadLettered("the card was declined")
    assert not shop.ledger.payments()


async def test_a_busy_provider_is_asked_again(shop: Shop, autojump_clock: MockClock) -> None:
    shop.provider.busy = 1
    outcome = await run_handler(shop.charge, ORDER.payload())
    assert outcome == Retried(60, "the provider is busy")
    assert await run_handler(shop.charge, ORDER.payload(), attempt=2) == Acked()


@settings(max_examples=50)
@given(payload=payloads(allow_none=True))
def test_what_is_no_order_is_given_up(payload: Payload | None) -> None:
    async def run() -> None:
        with closing(Shop()) as shop:
            outcome = await run_handler(shop.charge, payload)
            assert outcome == DeadLettered("the payload is no order")
            assert not shop.provider.charges

    trio.run(run, clock=MockClock(autojump_threshold=0))
