"""Faults of the official workers (spec/official-clients.md 6.2): stopping."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest
import trio
from grpclib.const import Status

from sepp_trio import ClientClosedError, JobCtx, Payload
from sepp_trio.testing import BlackHole, Delay, DropConnection, Fail
from tests.worker.bench import Bench
from tests.worker.helpers import (
    Watched,
    at_once,
    given_back,
    ids,
    running,
    sleeper,
    until,
    worker_on,
)


def delays() -> Iterator[float]:
    """From the same instant to well after the signal."""
    yield from (0.0, 0.0001, 0.001, 0.01, 0.5)


@pytest.mark.parametrize("delay", [*delays()])
async def test_07_08_a_reserve_that_is_answered_after_the_signal_is_run(
    bench: Bench, delay: float
) -> None:
    async with bench.running(sleeper(0.1)) as worker:
        await trio.sleep(1)
        worker.shutdown()
        if delay:
            await trio.sleep(delay)
        await bench.put("t", "t")
    assert len(bench.jobs().acked) == 2
    assert bench.calls.of("Nack") == ()
    # No further reserve was sent.
    assert len(bench.calls.of("Reserve")) == 1


async def test_07_a_graceful_stop_never_resets_the_pending_reserve(bench: Bench) -> None:
    async with bench.running(at_once, wait_timeout=5) as worker:
        await trio.sleep(1)
        worker.shutdown()
    [reserve] = bench.calls.of("Reserve")
    assert reserve.end == "answered"
    assert trio.current_time() == pytest.approx(5, abs=0.1)


async def test_07_a_forced_stop_resets_it_after_half_a_second(bench: Bench) -> None:
    async with bench.running(at_once, wait_timeout=60) as worker:
        await trio.sleep(1)
        worker.shutdown(0)
        [reserve] = bench.calls.of("Reserve")
        await trio.sleep(0.45)
        assert reserve.end is None
        await trio.sleep(0.1)
        assert reserve.end == "reset"
    assert trio.current_time() < 2


async def test_07_what_a_forced_stop_still_gets_is_given_back(bench: Bench) -> None:
    async with bench.running(sleeper(1), wait_timeout=60) as worker:
        await trio.sleep(1)
        worker.shutdown(0)
        await trio.sleep(0.3)
        await bench.put("t", "t")
    assert [given_back(job, "shutdown grace over") for job in bench.jobs()] == [True, True]
    assert worker.statistics().given_back == 2


async def test_07_an_answer_that_crosses_the_reset_is_taken(bench: Bench) -> None:
    async with bench.running(sleeper(1), wait_timeout=60) as worker:
        await trio.sleep(1)
        worker.shutdown(0)
        # From now on the answer is on its way; it arrives just behind the reset.
        await trio.sleep(0.4)
        bench.inject(BlackHole(0, 0.2))
        await bench.put("t")
    assert given_back(bench.jobs()[0], "shutdown grace over")
    # A tenth of a second after the reset.
    assert trio.current_time() == pytest.approx(1.6, abs=0.01)


async def test_17_a_handler_that_swallows_its_cancel_is_reported_and_nothing_is_sent(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(20)

    async with bench.running(handler, 5, max_in_flight=1) as worker:
        [job_id] = await bench.put("t", max_attempts=1)
        await until(lambda: worker.statistics().overdue)
        statistics = worker.statistics()
        assert statistics.overdue == 1
        assert 1 <= statistics.oldest_overdue < 3
        await trio.sleep_until(15)
        assert worker.statistics().in_flight == 1
        await until(lambda: not worker.statistics().in_flight)
        assert worker.statistics().overdue == 0
        worker.replace_handler("t", at_once)
        [other] = await bench.put("t")
        await bench.settled()
    assert ids(bench.jobs().acked) == {other}
    assert len(bench.calls.of("Ack")) == 1
    assert bench.calls.of("Nack") == ()
    warnings = [r.getMessage() for r in caplog.records if "goes on" in r.getMessage()]
    assert 3 <= len(warnings) <= 5
    assert job_id in warnings[0]
    assert "s after it was cancelled (its time is up)" in warnings[0]


@pytest.mark.parametrize("grace", [0.0, 3.0])
async def test_18_a_hung_handler_is_cancelled_when_the_grace_is_over(
    bench: Bench, grace: float
) -> None:
    handler = Watched()
    async with bench.running(handler, auto_extend=True, shutdown_grace=grace) as worker:
        await bench.put("t")
        await trio.sleep(100)
        assert bench.calls.of("Nack") == ()
        worker.shutdown()
    assert handler.cancelled == [pytest.approx(100 + grace, abs=0.01)]
    assert handler.reasons == ["shutdown grace over"]
    assert given_back(bench.jobs()[0], "shutdown grace over")


async def test_18_a_second_signal_forces(bench: Bench) -> None:
    async with bench.running(sleeper(1000)) as worker:
        await bench.put("t")
        await trio.sleep(10)
        worker.shutdown()
        await trio.sleep(5)
        assert worker.statistics().state == "draining"
        worker.shutdown(0)
        assert worker.statistics().state == "stopping"
    assert trio.current_time() < 17
    assert given_back(bench.jobs()[0], "shutdown grace over")


async def test_a_job_is_given_back_only_when_its_handler_has_ended(bench: Bench) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(4)

    async with bench.running(handler) as worker:
        await bench.put("t")
        await trio.sleep(10)
        worker.shutdown(0)
        await trio.sleep(3.9)
        assert bench.calls.of("Nack") == ()
    assert given_back(bench.jobs()[0], "shutdown grace over")


async def test_jobs_that_end_within_the_grace_are_acked_even_at_its_last_moment(
    bench: Bench,
) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await ctx.wait_stopping()
        assert ctx.stopping
        await trio.sleep({1: 0.5, 2: 0.999, 3: 1000}[ctx.priority])

    async with bench.running(handler, auto_extend=True) as worker:
        for priority in (1, 2, 3):
            await bench.put("t", priority=priority)
        await trio.sleep(50)
        bench.inject(Delay("Ack", request=0.3, times=2))
        worker.shutdown(1)
    assert [job.priority for job in bench.jobs().acked] == [1, 2]
    assert given_back(bench.jobs()[2], "shutdown grace over")


async def test_a_dead_server_holds_up_a_forced_stop_for_a_few_seconds_only(bench: Bench) -> None:
    async with bench.running(sleeper(1000), 60) as worker:
        await bench.put("t")
        await trio.sleep(10)
        bench.inject(BlackHole(0, 100))
        worker.shutdown(0)
    assert 10 < trio.current_time() <= 16.5
    assert worker.statistics().unreported == 1
    await bench.until(lambda jobs: jobs.expired)


@pytest.mark.parametrize("how", ["grace", "cancel"])
async def test_a_slow_server_may_take_its_time_to_take_many_jobs_back(
    bench: Bench, how: str
) -> None:
    bench.inject(*[Delay("Nack", n, request=n * 0.1) for n in range(1, 101)])
    worker = bench.worker(300, max_in_flight=100)
    worker.handle("t", sleeper(1000))
    with trio.CancelScope() as scope:
        async with running(worker):
            await bench.put(*["t"] * 100)
            await until(lambda: worker.statistics().in_flight == 100)
            if how == "cancel":
                scope.cancel()
            else:
                worker.shutdown(0)
    reason = "worker cancelled" if how == "cancel" else "shutdown grace over"
    assert len(bench.jobs().where(lambda job: given_back(job, reason))) == 100
    assert worker.statistics().unreported == 0


async def test_heartbeats_go_on_while_the_worker_drains(bench: Bench) -> None:
    async with bench.running(sleeper(1.5), 0.3, auto_extend=True) as worker:
        await bench.put("t")
        await trio.sleep(0.1)
        worker.shutdown()
    [job] = bench.jobs().acked
    assert job.attempt == 1
    assert len(job.extends) >= 10


@pytest.mark.parametrize("swallow", [False, True])
async def test_26_a_client_that_ends_before_its_worker_is_said_so(
    bench: Bench, swallow: bool
) -> None:
    reasons: list[str | None] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            reasons.append(ctx.cancel_reason)
            if not swallow:
                raise

    async def run() -> None:
        with pytest.raises(ClientClosedError, match="open_client block"):
            await worker.run()

    async with trio.open_nursery() as outer, bench.broker.open_client() as client:
        worker = worker_on(client)
        worker.handle("t", handler)
        outer.start_soon(run)
        await trio.sleep(1)
        await bench.put("t")
        await trio.sleep(1)
    assert reasons == ["client closed"]
    assert trio.current_time() < 6
    await bench.until(lambda jobs: jobs.expired)


async def test_26_a_client_that_ends_while_every_slot_is_taken_is_noticed_too(bench: Bench) -> None:
    async def run() -> None:
        with pytest.raises(ClientClosedError, match="open_client block"):
            await worker.run()

    async with trio.open_nursery() as outer, bench.broker.open_client() as client:
        worker = worker_on(client, max_in_flight=1)
        worker.handle("t", sleeper(5))
        outer.start_soon(run)
        await trio.sleep(1)
        await bench.put("t")
        await trio.sleep(1)
    assert trio.current_time() < 7
    await bench.until(lambda jobs: jobs.expired)


@pytest.mark.parametrize("moment", [0.2, 0.5, 1.1])
async def test_a_drain_ends_every_kind_of_waiting_for_the_server(
    bench: Bench, moment: float
) -> None:
    async with bench.running(at_once) as worker:
        for _ in range(5):
            # Connections that break again and again, then none at all.
            await trio.sleep(0.01)
            bench.inject(DropConnection(0))
        bench.inject(BlackHole(0, 100))
        await trio.sleep(moment)
        worker.shutdown()
        before = trio.current_time()
    assert trio.current_time() - before < 0.01


async def test_cancelling_run_gives_the_jobs_back_within_a_bound(bench: Bench) -> None:
    handler = Watched()
    worker = bench.worker()
    worker.handle("t", handler)
    with trio.move_on_after(10) as scope:
        async with running(worker):
            await bench.put("t", "t")
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert 10 <= trio.current_time() < 11
    assert handler.reasons == ["worker cancelled"] * 2
    assert [given_back(job, "worker cancelled") for job in bench.jobs()] == [True, True]
    assert worker.statistics().state == "stopped"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
async def test_a_handler_that_exits_the_program_releases_the_other_jobs(
    bench: Bench, error: BaseException
) -> None:
    async def leave(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(1)
        raise error

    worker = bench.worker()
    worker.handle("t", sleeper(1000))
    worker.handle("leave", leave)
    await bench.put("t", "t", "leave")
    with pytest.raises(type(error)) as caught:
        await worker.run()
    assert caught.value is error
    assert [given_back(job, "worker exits") for job in bench.jobs()] == [True] * 3


async def test_a_handle_shuts_down_from_another_thread(bench: Bench) -> None:
    worker = bench.worker()
    worker.handle("t", at_once)
    handle = worker.shutdown_handle()
    assert not handle.is_shutdown
    async with running(worker):
        thread = threading.Thread(target=handle.shutdown)
        thread.start()
        thread.join()
        assert handle.is_shutdown
        await until(lambda: worker.statistics().state == "stopped", 6)
    assert worker.statistics().state == "stopped"
    handle.shutdown()  # harmless


async def test_a_shutdown_before_run_lets_run_return(bench: Bench) -> None:
    worker = bench.worker()
    worker.handle("t", at_once)
    worker.shutdown()
    assert worker.shutdown_handle().is_shutdown
    async with running(worker):
        pass
    assert bench.calls.of("Reserve") == ()


@pytest.mark.parametrize("state", ["pause", "no server", "starting"])
async def test_a_shutdown_is_immediate_where_nothing_is_at_stake(bench: Bench, state: str) -> None:
    worker = bench.worker(reserve_error_backoff=60)
    worker.handle("t", at_once)
    if state == "starting":
        bench.inject(Fail("GetServerInfo", times=None))
    else:
        bench.inject(Fail("Reserve", status=Status.INTERNAL))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run)
        await trio.sleep(1)
        if state == "no server":
            bench.inject(DropConnection(0), BlackHole(0, 100))
            await trio.sleep(1)
        before = trio.current_time()
        worker.shutdown()
    assert trio.current_time() - before < 0.01


async def test_a_stop_is_logged_once(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sepp_trio.worker")
    async with bench.running(sleeper(1)) as worker:
        await bench.put("t")
        await trio.sleep(0.5)
        worker.shutdown()
        worker.shutdown()
    assert [r.getMessage() for r in caplog.records if "draining" in r.getMessage()] == [
        "draining: 1 jobs in flight"
    ]
