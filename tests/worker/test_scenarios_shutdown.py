"""Faults of the official workers (spec/official-clients.md 6.2): stopping."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest
import trio
from grpclib.const import Status

from sepp_trio import ClientClosedError, JobCtx, Payload, SeppClient
from sepp_trio.testing import (
    BlackHole,
    CallLog,
    Delay,
    DropConnection,
    Fail,
    FaultProxy,
    RecordingBroker,
)
from tests.worker.helpers import (
    Put,
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
    broker: RecordingBroker, calls: CallLog, client: SeppClient, put: Put, delay: float
) -> None:
    worker = worker_on(client)
    worker.handle("t", sleeper(0.1))
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        await trio.sleep(1)
        worker.shutdown()
        if delay:
            await trio.sleep(delay)
        await put("t", "t")
    assert len(broker.jobs().acked) == 2
    assert calls.of("Nack") == ()
    # No further reserve was sent.
    assert len(calls.of("Reserve")) == 1


async def test_07_a_graceful_stop_never_resets_the_pending_reserve(
    calls: CallLog, client: SeppClient
) -> None:
    worker = worker_on(client, wait_timeout=5)
    worker.handle("t", at_once)
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        await trio.sleep(1)
        worker.shutdown()
    [reserve] = calls.of("Reserve")
    assert reserve.end == "answered"
    assert trio.current_time() == pytest.approx(5, abs=0.1)


async def test_07_a_forced_stop_resets_it_after_half_a_second(
    calls: CallLog, client: SeppClient
) -> None:
    worker = worker_on(client, wait_timeout=60)
    worker.handle("t", at_once)
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        await trio.sleep(1)
        worker.shutdown(0)
        [reserve] = calls.of("Reserve")
        await trio.sleep(0.45)
        assert reserve.end is None
        await trio.sleep(0.1)
        assert reserve.end == "reset"
    assert trio.current_time() < 2


async def test_07_what_a_forced_stop_still_gets_is_given_back(
    broker: RecordingBroker, client: SeppClient, put: Put
) -> None:
    worker = worker_on(client, wait_timeout=60)
    worker.handle("t", sleeper(1))
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        await trio.sleep(1)
        worker.shutdown(0)
        await trio.sleep(0.3)
        await put("t", "t")
    assert [given_back(job, "shutdown grace over") for job in broker.jobs()] == [True, True]
    assert worker.statistics().given_back == 2


async def test_07_an_answer_that_crosses_the_reset_is_taken(
    broker: RecordingBroker, proxy: FaultProxy, client: SeppClient, put: Put
) -> None:
    worker = worker_on(client, wait_timeout=60)
    worker.handle("t", sleeper(1))
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        await trio.sleep(1)
        worker.shutdown(0)
        # From now on the answer is on its way; it arrives just behind the reset.
        await trio.sleep(0.4)
        proxy.inject(BlackHole(0, 0.2))
        await put("t")
    assert given_back(broker.jobs()[0], "shutdown grace over")
    # A tenth of a second after the reset.
    assert trio.current_time() == pytest.approx(1.6, abs=0.01)


async def test_17_a_handler_that_swallows_its_cancel_is_reported_and_nothing_is_sent(
    broker: RecordingBroker,
    calls: CallLog,
    client: SeppClient,
    put: Put,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(20)

    worker = worker_on(client, 5, max_in_flight=1)
    worker.handle("t", handler)
    async with running(worker):
        [job_id] = await put("t", max_attempts=1)
        await until(lambda: worker.statistics().overdue)
        statistics = worker.statistics()
        assert statistics.overdue == 1
        assert 1 <= statistics.oldest_overdue < 3
        await trio.sleep_until(15)
        assert worker.statistics().in_flight == 1
        await until(lambda: not worker.statistics().in_flight)
        assert worker.statistics().overdue == 0
        worker.replace_handler("t", at_once)
        [other] = await put("t")
        await broker.settled()
    assert ids(broker.jobs().acked) == {other}
    assert len(calls.of("Ack")) == 1
    assert calls.of("Nack") == ()
    warnings = [r.getMessage() for r in caplog.records if "goes on" in r.getMessage()]
    assert 3 <= len(warnings) <= 5
    assert job_id in warnings[0]
    assert "s after it was cancelled (its time is up)" in warnings[0]


@pytest.mark.parametrize("grace", [0.0, 3.0])
async def test_18_a_hung_handler_is_cancelled_when_the_grace_is_over(
    broker: RecordingBroker, calls: CallLog, client: SeppClient, put: Put, grace: float
) -> None:
    handler = Watched()
    worker = worker_on(client, auto_extend=True, shutdown_grace=grace)
    worker.handle("t", handler)
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        await put("t")
        await trio.sleep(100)
        assert calls.of("Nack") == ()
        worker.shutdown()
    assert handler.cancelled == [pytest.approx(100 + grace, abs=0.01)]
    assert handler.reasons == ["shutdown grace over"]
    assert given_back(broker.jobs()[0], "shutdown grace over")


async def test_18_a_second_signal_forces(
    broker: RecordingBroker, client: SeppClient, put: Put
) -> None:
    worker = worker_on(client)
    worker.handle("t", sleeper(1000))
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        await put("t")
        await trio.sleep(10)
        worker.shutdown()
        await trio.sleep(5)
        assert worker.statistics().state == "draining"
        worker.shutdown(0)
        assert worker.statistics().state == "stopping"
    assert trio.current_time() < 17
    assert given_back(broker.jobs()[0], "shutdown grace over")


async def test_a_job_is_given_back_only_when_its_handler_has_ended(
    broker: RecordingBroker, calls: CallLog, client: SeppClient, put: Put
) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(4)

    worker = worker_on(client)
    worker.handle("t", handler)
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        await put("t")
        await trio.sleep(10)
        worker.shutdown(0)
        await trio.sleep(3.9)
        assert calls.of("Nack") == ()
    assert given_back(broker.jobs()[0], "shutdown grace over")


async def test_jobs_that_end_within_the_grace_are_acked_even_at_its_last_moment(
    broker: RecordingBroker, proxy: FaultProxy, client: SeppClient, put: Put
) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await ctx.wait_stopping()
        assert ctx.stopping
        await trio.sleep({1: 0.5, 2: 0.999, 3: 1000}[ctx.priority])

    worker = worker_on(client, auto_extend=True)
    worker.handle("t", handler)
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        for priority in (1, 2, 3):
            await put("t", priority=priority)
        await trio.sleep(50)
        proxy.inject(Delay("Ack", request=0.3, times=2))
        worker.shutdown(1)
    assert [job.priority for job in broker.jobs().acked] == [1, 2]
    assert given_back(broker.jobs()[2], "shutdown grace over")


async def test_a_dead_server_holds_up_a_forced_stop_for_a_few_seconds_only(
    proxy: FaultProxy, client: SeppClient, put: Put
) -> None:
    worker = worker_on(client, 60)
    worker.handle("t", sleeper(1000))
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        await put("t")
        await trio.sleep(10)
        proxy.inject(BlackHole(0, 100))
        worker.shutdown(0)
    assert 10 < trio.current_time() <= 16.5
    assert worker.statistics().unreported == 1


@pytest.mark.parametrize("how", ["grace", "cancel"])
async def test_a_slow_server_may_take_its_time_to_take_many_jobs_back(
    broker: RecordingBroker, proxy: FaultProxy, client: SeppClient, put: Put, how: str
) -> None:
    proxy.inject(*[Delay("Nack", n, request=n * 0.1) for n in range(1, 101)])
    worker = worker_on(client, 300, max_in_flight=100)
    worker.handle("t", sleeper(1000))
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            await nursery.start(worker.run)
            await put(*["t"] * 100)
            await until(lambda: worker.statistics().in_flight == 100)
            if how == "cancel":
                scope.cancel()
            else:
                worker.shutdown(0)
    reason = "worker cancelled" if how == "cancel" else "shutdown grace over"
    assert len(broker.jobs().where(lambda job: given_back(job, reason))) == 100
    assert worker.statistics().unreported == 0


async def test_heartbeats_go_on_while_the_worker_drains(
    broker: RecordingBroker, client: SeppClient, put: Put
) -> None:
    worker = worker_on(client, 0.3, auto_extend=True)
    worker.handle("t", sleeper(1.5))
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        await put("t")
        await trio.sleep(0.1)
        worker.shutdown()
    [job] = broker.jobs().acked
    assert job.attempt == 1
    assert len(job.extends) >= 10


@pytest.mark.parametrize("swallow", [False, True])
async def test_26_a_client_that_ends_before_its_worker_is_said_so(
    broker: RecordingBroker, put: Put, swallow: bool
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

    async with trio.open_nursery() as outer, broker.open_client() as client:
        worker = worker_on(client)
        worker.handle("t", handler)
        outer.start_soon(run)
        await trio.sleep(1)
        await put("t")
        await trio.sleep(1)
    assert reasons == ["client closed"]
    assert trio.current_time() < 6


async def test_26_a_client_that_ends_while_every_slot_is_taken_is_noticed_too(
    broker: RecordingBroker, put: Put
) -> None:
    async def run() -> None:
        with pytest.raises(ClientClosedError, match="open_client block"):
            await worker.run()

    async with trio.open_nursery() as outer, broker.open_client() as client:
        worker = worker_on(client, max_in_flight=1)
        worker.handle("t", sleeper(5))
        outer.start_soon(run)
        await trio.sleep(1)
        await put("t")
        await trio.sleep(1)
    assert trio.current_time() < 7


@pytest.mark.parametrize("moment", [0.2, 0.5, 1.1])
async def test_a_drain_ends_every_kind_of_waiting_for_the_server(
    proxy: FaultProxy, client: SeppClient, moment: float
) -> None:
    worker = worker_on(client)
    worker.handle("t", at_once)
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        for _ in range(5):
            # Connections that break again and again, then none at all.
            await trio.sleep(0.01)
            proxy.inject(DropConnection(0))
        proxy.inject(BlackHole(0, 100))
        await trio.sleep(moment)
        worker.shutdown()
        before = trio.current_time()
    assert trio.current_time() - before < 0.01


async def test_cancelling_run_gives_the_jobs_back_within_a_bound(
    broker: RecordingBroker, client: SeppClient, put: Put
) -> None:
    handler = Watched()
    worker = worker_on(client)
    worker.handle("t", handler)
    with trio.move_on_after(10) as scope:
        async with trio.open_nursery() as nursery:
            await nursery.start(worker.run)
            await put("t", "t")
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert 10 <= trio.current_time() < 11
    assert handler.reasons == ["worker cancelled"] * 2
    assert [given_back(job, "worker cancelled") for job in broker.jobs()] == [True, True]
    assert worker.statistics().state == "stopped"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
async def test_a_handler_that_exits_the_program_releases_the_other_jobs(
    broker: RecordingBroker, client: SeppClient, put: Put, error: BaseException
) -> None:
    async def leave(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(1)
        raise error

    worker = worker_on(client)
    worker.handle("t", sleeper(1000))
    worker.handle("leave", leave)
    await put("t", "t", "leave")
    with pytest.raises(type(error)) as caught:
        await worker.run()
    assert caught.value is error
    assert [given_back(job, "worker exits") for job in broker.jobs()] == [True] * 3


async def test_a_handle_shuts_down_from_another_thread(client: SeppClient) -> None:
    worker = worker_on(client)
    worker.handle("t", at_once)
    handle = worker.shutdown_handle()
    assert not handle.is_shutdown
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        thread = threading.Thread(target=handle.shutdown)
        thread.start()
        thread.join()
        assert handle.is_shutdown
    assert worker.statistics().state == "stopped"
    handle.shutdown()  # harmless


async def test_a_shutdown_before_run_lets_run_return(client: SeppClient, calls: CallLog) -> None:
    worker = worker_on(client)
    worker.handle("t", at_once)
    worker.shutdown()
    assert worker.shutdown_handle().is_shutdown
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
    assert calls.of("Reserve") == ()


@pytest.mark.parametrize("state", ["pause", "no server", "starting"])
async def test_a_shutdown_is_immediate_where_nothing_is_at_stake(
    proxy: FaultProxy, client: SeppClient, state: str
) -> None:
    worker = worker_on(client, reserve_error_backoff=60)
    worker.handle("t", at_once)
    if state == "starting":
        proxy.inject(Fail("GetServerInfo", times=None))
    else:
        proxy.inject(Fail("Reserve", status=Status.INTERNAL))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run)
        await trio.sleep(1)
        if state == "no server":
            proxy.inject(DropConnection(0), BlackHole(0, 100))
            await trio.sleep(1)
        before = trio.current_time()
        worker.shutdown()
    assert trio.current_time() - before < 0.01


async def test_a_stop_is_logged_once(
    client: SeppClient, put: Put, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sepp_trio.worker")
    worker = worker_on(client)
    worker.handle("t", sleeper(1))
    async with running(worker):
        await put("t")
        await trio.sleep(0.5)
        worker.shutdown()
        worker.shutdown()
    assert [r.getMessage() for r in caplog.records if "draining" in r.getMessage()] == [
        "draining: 1 jobs in flight"
    ]
