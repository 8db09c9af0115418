"""Trials from the field (spec/trials.md) that concern worker, heartbeat and shutdown.

Those not here are among the scenarios: 4, 5, 15, 52 and 72 in ``test_many_workers``; 11, 15, 16,
17 in ``test_scenarios_lease``; 13 and 27 in ``test_outcomes``; 43, 44, 46, 74 in
``test_scenarios_reserve``; 49 in ``test_scenarios_shutdown``; 54 in ``test_signals``.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Awaitable, Callable

import pytest
import trio
from grpclib.const import Status

from sepp_trio import EnqueueRequest, JobCtx, Payload, open_client
from sepp_trio.testing import Answer, Fail, Recorder, open_fragile_server, open_recording_broker
from tests.worker.bench import Bench
from tests.worker.helpers import at_once, given_back, running, sleeper, until, worker_on

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
    bench: Bench, handler: Handler, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench.running(handler, 3, auto_extend=how == "refused", max_in_flight=1) as worker:
        await bench.put("t", max_attempts=1)
        if how == "refused":
            [job] = await bench.until(lambda jobs: jobs.leased)
            await bench.lose_lease(job)
        await until(lambda: worker.statistics().lost)
        assert worker.statistics().in_flight == 0
        await trio.sleep(5)
    assert bench.calls.of("Ack") == bench.calls.of("Nack") == ()
    lost = [r for r in caplog.records if "lease lost, nothing is sent" in r.getMessage()]
    assert len(lost) == 1


GARBAGE = b"\xff\xff"


@pytest.mark.parametrize("rpc", ["Ack", "Nack"])
@pytest.mark.parametrize(
    "answer",
    [
        Status.UNAVAILABLE,
        Status.INTERNAL,
        Status.UNKNOWN,
        Status.UNAUTHENTICATED,
        Status.INVALID_ARGUMENT,
        Status.NOT_FOUND,
        Status.FAILED_PRECONDITION,
        GARBAGE,
    ],
)
async def test_20_a_report_that_fails_stays_inside_its_job(
    bench: Bench, rpc: str, answer: Status | bytes
) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        if rpc == "Nack" and ctx.priority == 9 and ctx.attempt == 1:
            raise ValueError("fails")

    if isinstance(answer, Status):
        bench.inject(Fail(rpc, status=answer, times=None))
    else:
        bench.inject(Answer(rpc, message=answer, times=None))
    async with bench.running(handler, 5, max_in_flight=4) as worker:
        await bench.put("t", priority=9)
        await trio.sleep(6)
        bench.relent()
        await bench.put("t", "t", "t")
        await bench.settled()
    assert len(bench.jobs().acked) == 4
    statistics = worker.statistics()
    assert statistics.lost + statistics.unreported + statistics.retried <= 2
    assert 1 <= len(bench.calls.of(rpc)) < 60


async def test_42_a_server_that_restarts_costs_no_job_its_lease() -> None:
    recorder = Recorder()
    async with (
        open_fragile_server(recorder=recorder) as server,
        open_client(server.connect) as client,
    ):
        worker = worker_on(client, 5, auto_extend=True)
        worker.handle("t", sleeper(2))
        async with running(worker):
            await client.enqueue(EnqueueRequest("emails", "t"))
            await trio.sleep(1.5)
            await server.restart(1)
            with trio.fail_after(1):
                await recorder.settled()
            await client.enqueue(EnqueueRequest("emails", "t"))
            with trio.fail_after(2.2):
                await recorder.settled()
    assert [job.attempt for job in recorder.jobs().acked] == [1, 1]
    assert worker.statistics().lost == 0


async def test_48_after_many_rounds_with_faults_all_slots_are_free(bench: Bench) -> None:
    rng = random.Random(48)

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(rng.choice([0, 0.001, 0.02]))
        if rng.random() < 0.2:
            raise rng.choice([ValueError("x"), KeyError("y")])

    worker = bench.worker(2, max_in_flight=4, auto_extend=True, reserve_error_backoff=0.01)
    worker.handle("t", handler, max_in_flight=3)
    statuses = [Status.UNAVAILABLE, Status.INTERNAL, Status.NOT_FOUND, Status.FAILED_PRECONDITION]
    async with running(worker):
        for _ in range(200):
            rpc = rng.choice(["Ack", "Nack", "Extend", "Reserve"])
            if rpc != "Reserve":
                bench.inject(Fail(rpc, status=rng.choice(statuses)))
            elif rng.random() < 0.2:
                bench.inject(Fail(rpc, status=rng.choice(statuses[:2])))
            await bench.put(*["t"] * rng.choice([1, 4]))
            if rng.random() < 0.05:
                worker.max_in_flight = rng.choice([1, 4, 9])
            await trio.sleep(rng.choice([0, 0.005]))
        worker.max_in_flight = 4
        bench.relent()
        await bench.settled()
        # All four slots are there: four jobs run at once (three of a type).
        worker.handle("slow", sleeper(10))
        await bench.put(*["slow"] * 4)
        await trio.sleep(1)
        assert worker.statistics().in_flight == 4
    statistics = worker.statistics()
    assert (statistics.in_flight, statistics.waiting, statistics.reporting) == (0, 0, 0)
    assert len(bench.client._keeper) == 0


async def test_50_a_handler_that_does_not_react_keeps_no_lease(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    async def stubborn(payload: Payload | None, ctx: JobCtx) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(10)

    async with bench.running(stubborn, 3, auto_extend=True) as worker:
        await bench.put("t", max_attempts=1)
        await trio.sleep(4)
        beats = len(bench.calls.of("Extend"))
        assert beats >= 3
        worker.shutdown(0.3)
        await trio.sleep(4)
        assert len(bench.calls.of("Extend")) <= beats + 1
        assert bench.jobs().expired
    # run() waits for it: a task cannot be left behind.
    assert trio.current_time() == pytest.approx(10, abs=0.2)
    assert bench.calls.of("Ack") == bench.calls.of("Nack") == ()
    assert "goes on" in caplog.text
    assert "shutdown grace over" in caplog.text


def test_50_a_thread_that_does_not_react_is_waited_for() -> None:
    """On real time: a thread sees no other."""
    done: list[bool] = []
    began, go_on = threading.Event(), threading.Event()

    def blocks(payload: Payload | None, ctx: JobCtx) -> None:
        began.set()
        go_on.wait()
        done.append(True)

    async def main() -> None:
        async with open_recording_broker() as broker, broker.open_client() as client:
            await client.enqueue(EnqueueRequest("emails", "t"))
            worker = worker_on(client, wait_timeout=0.1)
            worker.handle("t", blocks)
            async with running(worker):
                await until(began.is_set, 20)
                worker.shutdown(0)
                await trio.sleep(0.1)
                go_on.set()
            assert done == [True]
            # It ended well, but after its cancel: it is given back, not acked.
            assert given_back(broker.jobs()[0], "shutdown grace over")

    trio.run(main)


async def test_56_many_leases_on_few_streams_and_a_blocked_loop(bench: Bench) -> None:
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)
    async with bench.running(sleeper(9), 2, auto_extend=True, max_in_flight=200) as worker:
        await bench.put(*["t"] * 200)
        await trio.sleep(5.1)
        clock.jump(1.2)  # somebody blocks the loop
        await bench.settled()
    assert {job.attempt for job in bench.jobs().acked} == {1}
    assert len(bench.jobs().acked) == 200
    assert worker.statistics().lost == 0


async def test_56_a_job_that_blocks_the_loop_beyond_its_lease_is_not_acked(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, trio.testing.MockClock)

    async def blocks(payload: Payload | None, ctx: JobCtx) -> None:
        clock.jump(2.5)

    async with bench.running(blocks, 2, auto_extend=True) as worker:
        [job_id] = await bench.put("t", max_attempts=1)
        await until(lambda: worker.statistics().lost)
    assert bench.calls.of("Ack") == bench.calls.of("Nack") == ()
    assert f"job {job_id} type 't' attempt 1/1: lease lost" in caplog.text


async def test_70_a_handler_can_tell_why_it_was_cancelled(bench: Bench) -> None:
    reasons: dict[str, str | None] = {}

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        with trio.move_on_after(1 if ctx.job_type == "own" else 1000):
            try:
                await trio.sleep_forever()
            finally:
                reasons[ctx.job_type] = ctx.cancel_reason

    worker = bench.worker()
    for job_type in ("own", "lost", "stopped"):
        worker.handle(job_type, handler)
    worker.handle("late", handler, timeout=4)
    async with running(worker):
        await bench.put("own", "lost", "late", max_attempts=1)
        await trio.sleep(29)
        await bench.put("stopped")
        await until(lambda: "lost" in reasons)
        worker.shutdown(5)
    assert reasons == {
        "own": None,
        "lost": "lease lost",
        "late": "handler timed out",
        "stopped": "shutdown grace over",
    }
    [own, lost, late, stopped] = bench.jobs()
    assert own.state == "acked"
    assert lost.nack_reasons == ()
    assert late.nack_reasons == ("handler timed out after 4 s",)
    assert given_back(stopped, "shutdown grace over")


async def test_a_broken_server_does_not_flood_the_log(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sepp_trio.worker")
    async with bench.running(at_once, max_in_flight=200) as worker:
        await bench.put(*["nobody's"] * 1000, max_attempts=1)
        await bench.settled()
        await trio.sleep(2)
        await bench.put("nobody's", max_attempts=1)
        await bench.settled()
    assert worker.statistics().unhandled == 1001
    lines = [r.getMessage() for r in caplog.records if "no handler" in r.getMessage()]
    assert len(lines) <= 12
    assert "more lines like the next were left out" in caplog.text
