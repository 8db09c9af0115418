"""Nobody pays twice, in any story that Hypothesis can think of.

Orders come in, some of them again; leases are lost, connections drop, calls fail or lose their
answers, the provider is busy, worker and server are restarted: all of it at any moment of a
payment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from sepp_trio import Handler
from sepp_trio.testing import Jobs
from sepp_trio.testing.stateful import HandlerMachine

from .handler import Ledger, Order, Payments
from .provider import FakeProvider

ORDERS = [Order("1", card="Ada's", cents=100), Order("2", card="Grace's", cents=2000)]


class Paying(HandlerMachine):
    payloads: ClassVar = {"charge": st.sampled_from(ORDERS).map(Order.payload)}

    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger()
        self.provider = FakeProvider(latency=1)  # slow enough to get in between

    def handlers(self) -> Mapping[str, Handler]:
        return {"charge": Payments(self.ledger, self.provider).charge}

    @rule(requests=st.integers(1, 3))
    def provider_turns_away(self, requests: int) -> None:
        self.provider.busy = requests

    @invariant()
    def nobody_pays_twice(self) -> None:
        charges = Counter(charge.card for charge in self.provider.charges)
        assert max(charges.values(), default=0) <= 1, charges

    def check(self, jobs: Jobs) -> None:
        """Every job is acked, and every order that came in is paid and booked."""
        super().check(jobs)
        ordered = {order.number: order for order in map(Order.read, (job.payload for job in jobs))}
        assert self.ledger.payments().keys() == ordered.keys(), "acked, but not paid"
        assert self.ledger.revenue() == sum(order.cents for order in ordered.values())

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.ledger.close()


TestPaying = Paying.TestCase
TestPaying.settings = settings(max_examples=15, stateful_step_count=30)
