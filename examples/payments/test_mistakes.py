"""What the tests are good for: wrong variants of the handler, and how each comes to light."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import closing

import pytest
import trio
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from trio.testing import MockClock

from sepp_trio import Handler, JobCtx, Payload
from sepp_trio.testing import SweepFailure, SweepRun, cancellation_sweep

from .handler import Order, Payments
from .shop import ORDER, Shop
from .test_machine import Paying


async def sweep(payments: type[Payments]) -> SweepFailure:
    """What test_cancellation.py would say of this handler."""
    with closing(Shop(payments)) as shop:

        def invariant(run: SweepRun) -> None:
            assert len(shop.provider.charges) <= 1, "charged twice"
            if run.settled:
                assert shop.ledger.payments() == {ORDER.number: 1}, "not booked"

        with pytest.raises(SweepFailure) as failure:
            await cancellation_sweep(
                shop.charge, ORDER.payload(), setup=shop.start_over, invariant=invariant
            )
    return failure.value


def play(machine: type[Paying]) -> None:
    """What test_machine.py would say of it, though not in the shortest story: that takes longer."""
    stories = settings(
        derandomize=True,  # the same stories each time
        max_examples=500,
        stateful_step_count=40,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        database=None,
    )
    run_state_machine_as_test(machine, settings=stories)


class NewKeyEachTime(Payments):
    """Missing idempotency: the provider cannot know that it is the same order."""

    async def charge(self, payload: Payload | None, ctx: JobCtx) -> None:
        order = Order.read(payload)
        if await trio.to_thread.run_sync(self.ledger.is_paid, order.number):
            return
        key = str(uuid.uuid4())
        charge = await self.provider.charge(order.card, order.cents, idempotency_key=key)
        await trio.to_thread.run_sync(self.ledger.book, order.number, charge)


async def test_missing_idempotency(autojump_clock: MockClock) -> None:
    failure = await sweep(NewKeyEachTime)
    assert "charged twice" in failure.problem
    assert failure.line is not None
    assert failure.line.text == "await trio.sleep(self.latency)"  # before the answer is back


def test_the_machine_finds_it_too() -> None:
    class Shopping(Paying):
        def handlers(self) -> Mapping[str, Handler]:
            return {"charge": NewKeyEachTime(self.ledger, self.provider).charge}

    with pytest.raises(AssertionError, match="Counter"):
        play(Shopping)


class ShieldsTheRequest(Payments):
    """A shielded section without a deadline: "the answer must not be lost"."""

    async def charge(self, payload: Payload | None, ctx: JobCtx) -> None:
        order = Order.read(payload)
        if await trio.to_thread.run_sync(self.ledger.is_paid, order.number):
            return
        with trio.CancelScope(shield=True):
            charge = await self.provider.charge(
                order.card, order.cents, idempotency_key=order.number
            )
            await trio.to_thread.run_sync(self.ledger.book, order.number, charge)


async def test_a_shielded_section_without_a_deadline(autojump_clock: MockClock) -> None:
    failure = await sweep(ShieldsTheRequest)
    assert "a shielded section without a deadline" in failure.problem
    assert failure.line is not None
    assert failure.line.text == "await trio.sleep(self.latency)"


class AcksFirst(Payments):
    """Acks before the side effect: "then it is certain that nobody pays twice"."""

    machine: Paying

    async def charge(self, payload: Payload | None, ctx: JobCtx) -> None:
        await self.machine.client.ack(ctx)
        await super().charge(payload, ctx)


def test_an_ack_before_the_side_effect() -> None:
    class Shopping(Paying):
        def handlers(self) -> Mapping[str, Handler]:
            payments = AcksFirst(self.ledger, self.provider)
            payments.machine = self
            return {"charge": payments.charge}

    with pytest.raises(AssertionError, match="acked, but not paid"):
        play(Shopping)
