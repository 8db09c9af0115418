"""Trials from the field (spec/trials.md) that concern worker, heartbeat and shutdown.

Those not here are among the scenarios: 4, 5, 15, 52 and 72 in ``test_on_broker``; 11, 15, 16, 17
in ``test_scenarios_lease``; 13 and 27 in ``test_outcomes``; 43, 44, 46, 74 in
``test_scenarios_reserve``; 49 in ``test_scenarios_shutdown``; 54 in ``test_signals``.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from grpclib.const import Status

from sepp_trio import (
    EnqueueRequest,
    JobCtx,
    Payload,
    SeppClient,
    Worker,
    open_broker,
)
from tests.worker.fixtures import client as client
from tests.worker.fixtures import sepp as sepp
from tests.worker.helpers import Sepp, at_once, running, sleeper, until, worker_on

Handler = Callable[[Payload | None, JobCtx], Awaitable[None]]


async def swallows_and_returns(payload: Payload | None, ctx: JobCtx) -> None:
    try:
        await trio.sleep_forever()
    except BaseException:
        return


async def swallows_and_raises(payload: Payload | None, ctx: JobCtx) -> None:
    try:
        await trio.sleep_forever()
    except BaseException:
        raise ValueError("mine") from None


async def finishes_in_the_same_tick(payload: Payload | None, ctx: JobCtx) -> None:
    with trio.CancelScope(shield=True):
        while ctx.cancel_reason is None:
            await trio.lowlevel.checkpoint()
            await trio.sleep(0.001)


async def returns_from_a_shielded_cleanup(payload: Payload | None, ctx: JobCtx) -> None:
    try:
        await trio.sleep_forever()
    finally:
        with trio.move_on_after(0.5, shield=True):
            await trio.sleep_forever()


@pytest.mark.parametrize(
    "handler",
    [
        swallows_and_returns,
        swallows_and_raises,
        finishes_in_the_same_tick,
        returns_from_a_shielded_cleanup,
    ],
)
@pytest.mark.parametrize("how", ["refused", "expired"])
async def test_12_the_verdict_of_the_lease_is_final_whatever_the_handler_does(
    sepp: Sepp,
    client: SeppClient,
    handler: Handler,
    how: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = worker_on(client, 3, auto_extend=how == "refused", max_in_flight=1)
    worker.handle("t", handler)
    async with running(worker):
        sepp.fail("Extend", Status.NOT_FOUND)
        sepp.put("t")
        await until(lambda: worker.statistics().lost)
        assert worker.statistics().in_flight == 0
        await trio.sleep(5)
    assert sepp.acks == sepp.nacks == []
    lost = [r for r in caplog.records if "lease lost, nothing is sent" in r.getMessage()]
    assert len(lost) == 1


@pytest.mark.parametrize("rpc", ["Ack", "Nack"])
@pytest.mark.parametrize(
    "answer",
    [
        Status.UNAVAILABLE,
        Status.INTERNAL,
        Status.UNAUTHENTICATED,
        Status.INVALID_ARGUMENT,
        Status.NOT_FOUND,
        Status.FAILED_PRECONDITION,
        b"\xff\xff",
        None,
    ],
)
async def test_20_a_report_that_fails_stays_inside_its_job(
    sepp: Sepp, client: SeppClient, rpc: str, answer: Any
) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        if rpc == "Nack" and ctx.id == first:
            raise ValueError("fails")

    async def broken(request: Any) -> Any:
        raise RuntimeError("the server breaks")

    worker = worker_on(client, 5)
    worker.handle("t", handler)
    async with running(worker):
        sepp.fail(rpc, *[answer or broken] * 200)
        [first] = sepp.put("t")
        await until(lambda: worker.statistics().received == 1, 1)
        await trio.sleep(6)
        sepp._failing[rpc].clear()
        others = sepp.put("t", "t", "t")
        await until(lambda: set(others) <= set(sepp.acks))
    statistics = worker.statistics()
    assert statistics.lost + statistics.unreported + statistics.retried <= 1
    assert not {nack.job_id for nack in sepp.nacks} & set(sepp.acks)
    assert len(sepp.requests("Ack")) < 60
    assert len(sepp.requests("Nack")) < 60


async def test_42_a_server_that_restarts_costs_no_job_its_lease() -> None:
    """The broker stays, its connections go: as a restart on the same file looks to us."""
    async with open_broker() as broker:
        up = True
        streams: list[trio.abc.Stream] = []

        async def connect() -> trio.abc.Stream:
            if not up:
                await trio.sleep(0.01)
                raise OSError("refused")
            stream = await broker._connect()
            streams.append(stream)
            return stream

        from sepp_trio import open_client

        async with open_client(connect) as client, broker.open_client() as other:
            worker = Worker(client, ["q"], 5, auto_extend=True)
            worker.handle("t", sleeper(2))
            async with running(worker):
                await other.enqueue(EnqueueRequest("q", "t"))
                await trio.sleep(1.5)
                up = False
                for stream in streams:
                    await stream.aclose()
                await trio.sleep(1)
                back = trio.current_time()
                up = True
                await until(lambda: worker.statistics().acked == 1, 1)
                assert trio.current_time() - back < 1
                await other.enqueue(EnqueueRequest("q", "t"))
                await until(lambda: worker.statistics().acked == 2, 2.2)
            assert worker.statistics().lost == 0


async def test_48_after_many_rounds_with_faults_all_slots_are_free(
    sepp: Sepp, client: SeppClient
) -> None:
    rng = random.Random(48)

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(rng.choice([0, 0.001, 0.02]))
        if rng.random() < 0.2:
            raise rng.choice([ValueError("x"), KeyError("y")])

    worker = worker_on(client, 2, max_in_flight=4, auto_extend=True, reserve_error_backoff=0.01)
    worker.handle("t", handler, max_in_flight=3)
    statuses = [Status.UNAVAILABLE, Status.INTERNAL, Status.NOT_FOUND, Status.FAILED_PRECONDITION]
    async with running(worker):
        for _ in range(1000):
            rpc = rng.choice(["Ack", "Nack", "Extend", "Reserve"])
            if rpc != "Reserve":
                sepp.fail(rpc, rng.choice(statuses))
            elif rng.random() < 0.2:
                sepp.fail(rpc, rng.choice(statuses[:2]))
            sepp.put(*["t"] * rng.choice([1, 4]))
            if rng.random() < 0.05:
                worker.max_in_flight = rng.choice([1, 4, 9])
            await trio.sleep(rng.choice([0, 0.005]))
        worker.max_in_flight = 4
        await until(lambda: not sepp.ready)
        await until(lambda: not worker.statistics().in_flight and not worker.statistics().reporting)
        sepp._failing.clear()
        # All four slots are there: four jobs run at once (three of a type).
        worker.handle("slow", sleeper(10))
        sepp.put(*["slow"] * 4)
        await trio.sleep(1)
        assert worker.statistics().in_flight == 4
    statistics = worker.statistics()
    assert (statistics.in_flight, statistics.waiting, statistics.reporting) == (0, 0, 0)
    assert len(client._keeper) == 0


async def test_50_a_handler_that_does_not_react_keeps_no_lease(
    sepp: Sepp, client: SeppClient, caplog: pytest.LogCaptureFixture
) -> None:
    async def stubborn(payload: Payload | None, ctx: JobCtx) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(10)

    worker = worker_on(client, 3, auto_extend=True)
    worker.handle("t", stubborn)
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        [job_id] = sepp.put("t")
        await trio.sleep(4)
        beats = len(sepp.extend_times)
        assert beats >= 3
        worker.shutdown(0.3)
        await trio.sleep(4)
        assert len(sepp.extend_times) <= beats + 1
        assert sepp.leases[job_id].expires < trio.current_time()
    # run() waits for it: a task cannot be left behind.
    assert trio.current_time() == pytest.approx(10, abs=0.2)
    assert sepp.acks == sepp.nacks == []
    assert "goes on" in caplog.text
    assert "shutdown grace over" in caplog.text


def test_50_a_thread_that_does_not_react_is_waited_for() -> None:
    """On real time: a thread sees no other."""
    done: list[bool] = []
    began = threading.Event()

    def blocks(payload: Payload | None, ctx: JobCtx) -> None:
        began.set()
        time.sleep(0.1)
        done.append(True)

    async def main() -> None:
        async with open_broker() as broker, broker.open_client() as client:
            await client.enqueue(EnqueueRequest("q", "t"))
            worker = Worker(client, ["q"], 60, wait_timeout=0.1)
            worker.handle("t", blocks)
            async with trio.open_nursery() as nursery:
                await nursery.start(worker.run)
                await until(began.is_set, 5)
                worker.shutdown(0)
            assert done == [True]
            # It ended well, but after its cancel: it is given back, not acked.
            assert worker.statistics().given_back == 1
            assert worker.statistics().acked == 0

    trio.run(main)


async def test_56_many_leases_on_few_streams_and_a_blocked_loop(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    sepp = Sepp(nursery)
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    async with sepp.client() as client:
        worker = worker_on(client, 2, auto_extend=True, max_in_flight=200)
        worker.handle("t", sleeper(20))
        async with running(worker):
            sepp.put(*["t"] * 200)
            await trio.sleep(5.1)
            clock.jump(1.2)  # somebody blocks the loop
            await trio.sleep(5)
            assert worker.statistics().lost == 0
            await until(lambda: worker.statistics().acked == 200)


async def test_56_a_job_that_blocks_the_loop_beyond_its_lease_is_not_acked(
    sepp: Sepp, client: SeppClient, caplog: pytest.LogCaptureFixture
) -> None:
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)

    async def blocks(payload: Payload | None, ctx: JobCtx) -> None:
        clock.jump(2.5)

    worker = worker_on(client, 2, auto_extend=True)
    worker.handle("t", blocks)
    async with running(worker):
        [job_id] = sepp.put("t")
        await until(lambda: worker.statistics().lost)
    assert sepp.acks == sepp.nacks == []
    assert f"job {job_id} type 't' attempt 1/3: lease lost" in caplog.text


async def test_70_a_handler_can_tell_why_it_was_cancelled(sepp: Sepp, client: SeppClient) -> None:
    reasons: dict[str, str | None] = {}

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        with trio.move_on_after(1 if ctx.job_type == "own" else 1000):
            try:
                await trio.sleep_forever()
            finally:
                reasons[ctx.job_type] = ctx.cancel_reason

    worker = worker_on(client)
    for job_type in ("own", "lost", "stopped"):
        worker.handle(job_type, handler)
    worker.handle("late", handler, timeout=4)
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        ids = sepp.put("own", "lost", "late")
        await trio.sleep(29)
        ids += sepp.put("stopped")
        await until(lambda: "lost" in reasons)
        worker.shutdown(5)
    assert reasons == {
        "own": None,
        "lost": "lease lost",
        "late": "handler timed out",
        "stopped": "shutdown grace over",
    }
    assert sepp.acks == [ids[0]]
    assert [nack.job_id for nack in sepp.nacks] == ids[2:]


async def test_a_broken_server_does_not_flood_the_log(
    sepp: Sepp, client: SeppClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sepp_trio.worker")
    worker = worker_on(client, max_in_flight=200)
    worker.handle("t", at_once)
    async with running(worker):
        sepp.put(*["nobody's"] * 1000)
        await until(lambda: worker.statistics().unhandled == 1000)
        await trio.sleep(2)
        sepp.put("nobody's")
        await until(lambda: worker.statistics().unhandled == 1001)
    lines = [r.getMessage() for r in caplog.records if "no handler" in r.getMessage()]
    assert len(lines) <= 12
    assert "more lines like the next were left out" in caplog.text
