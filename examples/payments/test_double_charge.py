"""Nobody pays twice, whatever happens between us and the queue."""

from __future__ import annotations

from contextlib import closing

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from sepp_trio.testing import Acked, FaultPlan, run_handler
from sepp_trio.testing.strategies import fault_plans

from .shop import ORDER, Shop


@settings(max_examples=30)
@given(deliveries=st.lists(fault_plans(seconds=5, longest=5), min_size=1, max_size=3))
def test_no_fault_between_us_and_the_queue_charges_twice(deliveries: list[FaultPlan]) -> None:
    async def run() -> None:
        with closing(Shop()) as shop:
            shop.provider.latency = 2  # enough for a heartbeat to find that the lease is lost
            for plan in deliveries:
                await run_handler(
                    shop.charge, ORDER.payload(), lease_duration=1, auto_extend=True, faults=plan
                )
                assert len(shop.provider.charges) <= 1
            assert await run_handler(shop.charge, ORDER.payload()) == Acked()
            assert len(shop.provider.charges) == 1
            assert shop.ledger.revenue() == ORDER.cents

    trio.run(run, clock=MockClock(autojump_threshold=0))
