"""What never ends is ended by the kit, and told of with its line."""

from __future__ import annotations

import time
from typing import Any

import pytest
import trio

from sepp_trio import EnqueueRequest, JobCtx, Payload
from sepp_trio.testing import (
    Acked,
    SweepRun,
    assert_no_leaks,
    cancellation_sweep,
    open_recording_broker,
    open_worker_starter,
    run_handler,
)
from tests.testing.sweeping import failure_of, line_of


async def shielded(payload: Payload | None, ctx: JobCtx) -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()  # here


async def shielded_again(payload: Payload | None, ctx: JobCtx) -> None:
    try:
        await trio.sleep_forever()
    finally:
        for _ in range(3):
            with trio.move_on_after(1000, shield=True):
                await trio.sleep_forever()


async def spins(payload: Payload | None, ctx: JobCtx) -> None:
    while True:
        await trio.lowlevel.checkpoint()  # here


async def spins_shielded(payload: Payload | None, ctx: JobCtx) -> None:
    with trio.CancelScope(shield=True):
        await spins(payload, ctx)


@pytest.fixture
def _short_backstop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sepp_trio.testing._standstill._REAL_SECONDS", 0.5)


# ---- run_handler ----


@pytest.mark.usefixtures("_short_backstop")
@pytest.mark.parametrize("handler", [spins, spins_shielded])
async def test_a_handler_that_lets_the_clock_stand_still_is_ended(handler: Any) -> None:
    where = (
        rf"^after 0\.5 s of real time in which Trio's clock stood still {handler.__name__} has not"
        r" ended; it is at .*test_endless\.py:\d+ in spins: await trio.lowlevel.checkpoint\(\)"
    )
    async with assert_no_leaks():
        with pytest.raises(trio.TooSlowError, match=where):
            await run_handler(handler, limit=5)


@pytest.mark.usefixtures("_short_backstop")
async def test_a_clock_that_waits_for_a_thread_does_not_stand_still() -> None:
    def works(payload: Payload | None, ctx: JobCtx) -> None:
        time.sleep(1.2)

    assert await run_handler(works) == Acked()


# ---- cancellation_sweep ----


@pytest.mark.usefixtures("_short_backstop")
@pytest.mark.parametrize("handler", [spins, spins_shielded])
async def test_a_sweep_ends_a_handler_that_lets_the_clock_stand_still(handler: Any) -> None:
    async with assert_no_leaks():
        failure = await failure_of(handler, limit=5)
    assert failure.problem == "the handler does not end, and nobody cancels it"
    assert failure.line is not None
    assert failure.line.number == line_of(spins)


async def test_a_sweep_may_go_on_while_the_clock_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Far apart: no delivery is to stand still for so long, not even on a machine that does.
    monkeypatch.setattr("sepp_trio.testing._standstill._REAL_SECONDS", 1.6)
    times = set()

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        time.sleep(0.7)  # noqa: ASYNC251 - it computes
        await trio.lowlevel.checkpoint()
        times.add(trio.current_time())

    began = time.perf_counter()
    await cancellation_sweep(handler)
    assert len(times) == 1
    assert time.perf_counter() - began > 2 * 1.6


async def never_ends(*run: SweepRun) -> None:
    await trio.sleep_forever()  # here


async def spins_too(*run: SweepRun) -> None:
    while True:
        await trio.lowlevel.checkpoint()  # here


async def never_ends_shielded(*run: SweepRun) -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()  # here


async def spins_too_shielded(*run: SweepRun) -> None:
    with trio.CancelScope(shield=True):
        while True:
            await trio.lowlevel.checkpoint()  # here


@pytest.mark.usefixtures("_short_backstop")
@pytest.mark.parametrize(
    "function", [never_ends, spins_too, never_ends_shielded, spins_too_shielded]
)
async def test_an_invariant_or_setup_that_does_not_end_is_ended(function: Any) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(1)

    async with assert_no_leaks():
        failures = [
            await failure_of(handler, setup=function),
            await failure_of(handler, invariant=function, limit=5),
        ]
    assert [failure.problem for failure in failures] == [
        "setup does not end",
        "the invariant does not end",
    ]
    assert [len(failure.history) for failure in failures] == [0, 1]
    for failure in failures:
        assert failure.line is not None
        assert failure.line.number == line_of(function)


async def test_a_setup_may_take_as_long_as_the_limit() -> None:
    async def setup() -> None:
        await trio.sleep(4.9)

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(1)

    await cancellation_sweep(handler, setup=setup, limit=5)


# ---- sepp_worker ----


async def started(handler: Any, **options: Any) -> None:
    """What the fixtures do around a test that ends while the handler runs."""
    async with (
        open_recording_broker() as broker,
        broker.open_client() as client,
        open_worker_starter(broker, client) as start,
    ):
        await client.enqueue(EnqueueRequest("emails", "welcome"))
        await start("emails", {"welcome": handler}, **options)
        await broker.until(lambda jobs: jobs.leased)


@pytest.mark.parametrize("handler", [shielded, shielded_again])
async def test_a_handler_that_does_not_let_the_test_end_is_ended(handler: Any) -> None:
    where = (
        r"^the test has ended, and after 65 s on Trio's clock a worker has not: job .*'welcome'"
        rf".* is at .*test_endless\.py:\d+ in {handler.__name__}: await trio.sleep_forever\(\)"
    )
    async with assert_no_leaks():
        with pytest.raises(trio.TooSlowError, match=where):
            await started(handler)
        with pytest.raises(trio.TooSlowError, match="after 100 s on"):
            await started(handler, shutdown_grace=40, auto_extend=True)


@pytest.mark.usefixtures("_short_backstop")
async def test_so_is_one_that_lets_the_clock_stand_still() -> None:
    async with assert_no_leaks():
        with pytest.raises(trio.TooSlowError, match=r"stood still a worker has not: .* in spins: "):
            await started(spins_shielded)


async def test_so_it_is_when_the_test_is_cancelled() -> None:
    async def cancelled() -> None:
        async with open_recording_broker() as broker, broker.open_client() as client:
            await client.enqueue(EnqueueRequest("emails", "welcome"))
            with trio.move_on_after(10):
                async with open_worker_starter(broker, client) as start:
                    await start("emails", {"welcome": shielded})
                    await trio.sleep_forever()

    async with assert_no_leaks():
        with pytest.raises(trio.TooSlowError, match="in shielded"):
            await cancelled()


async def test_the_error_of_a_test_whose_handler_does_not_end_is_its_cause() -> None:
    async def fails() -> None:
        async with open_recording_broker() as broker, broker.open_client() as client:
            await client.enqueue(EnqueueRequest("emails", "welcome"))
            async with open_worker_starter(broker, client) as start:
                await start("emails", {"welcome": shielded})
                await trio.sleep(1)
                raise ValueError("the test's own")

    async with assert_no_leaks():
        with pytest.raises(trio.TooSlowError, match="in shielded") as caught:
            await fails()
    assert "the test's own" in repr(caught.value.__cause__)
