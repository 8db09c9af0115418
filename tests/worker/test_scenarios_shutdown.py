"""Faults of the official workers (spec/official-clients.md 6.2): stopping."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest
import trio
from grpclib.const import Status

from sepp_trio import ClientClosedError, JobCtx, Payload, SeppClient
from sepp_trio.wire import records
from tests.client.fake import after
from tests.worker.fixtures import client as client
from tests.worker.fixtures import sepp as sepp
from tests.worker.helpers import Sepp, at_once, running, sleeper, until, worker_on


def delays() -> Iterator[float]:
    """From the same instant to well after the signal."""
    yield from (0.0, 0.0001, 0.001, 0.01, 0.5)


@pytest.mark.parametrize("delay", [*delays()])
async def test_07_08_a_reserve_that_is_answered_after_the_signal_is_run(
    sepp: Sepp, client: SeppClient, delay: float
) -> None:
    worker = worker_on(client)
    worker.handle("t", sleeper(0.1))
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        await trio.sleep(1)
        worker.shutdown()
        if delay:
            await trio.sleep(delay)
        ids = sepp.put("t", "t")
    assert sorted(sepp.acks) == sorted(ids)
    assert sepp.nacks == []
    # No further reserve was sent.
    assert len(sepp.reserve_times) == 1


async def test_07_a_graceful_stop_never_resets_the_pending_reserve(
    sepp: Sepp, client: SeppClient
) -> None:
    worker = worker_on(client, wait_timeout=5)
    worker.handle("t", at_once)
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        await trio.sleep(1)
        worker.shutdown()
        await trio.sleep(1)
        assert sepp.open_calls == 1
    assert trio.current_time() == pytest.approx(5, abs=0.1)


async def test_07_a_forced_stop_resets_it_after_half_a_second(
    sepp: Sepp, client: SeppClient
) -> None:
    worker = worker_on(client, wait_timeout=60)
    worker.handle("t", at_once)
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        await trio.sleep(1)
        worker.shutdown(0)
        await trio.sleep(0.45)
        assert sepp.open_calls == 1
        await trio.sleep(0.1)
        assert sepp.open_calls == 0
    assert trio.current_time() < 2


async def test_07_what_a_forced_stop_still_gets_is_given_back(
    sepp: Sepp, client: SeppClient
) -> None:
    worker = worker_on(client, wait_timeout=60)
    worker.handle("t", sleeper(1))
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        await trio.sleep(1)
        worker.shutdown(0)
        await trio.sleep(0.3)
        ids = sepp.put("t", "t")
    assert sorted(nack.job_id for nack in sepp.nacks) == sorted(ids)
    assert all(nack.retry and nack.retry.delay == (0, 0) for nack in sepp.nacks)
    assert worker.statistics().given_back == 2


async def test_07_an_answer_that_crosses_the_reset_is_taken(sepp: Sepp, client: SeppClient) -> None:
    worker = worker_on(client, wait_timeout=60)
    worker.handle("t", sleeper(1))
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        await trio.sleep(1)
        worker.shutdown(0)
        # From now on the answer is on its way; it arrives just behind the reset.
        await trio.sleep(0.4)
        [link] = sepp.links
        link.freeze()
        [job_id] = sepp.put("t")
        await trio.sleep(0.2)
        link.thaw()
    assert [nack.job_id for nack in sepp.nacks] == [job_id]


async def test_17_a_handler_that_swallows_its_cancel_is_reported_and_nothing_is_sent(
    sepp: Sepp, client: SeppClient, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(20)

    worker = worker_on(client, 5, max_in_flight=1)
    worker.handle("t", handler)
    async with running(worker):
        [job_id] = sepp.put("t")
        await until(lambda: worker.statistics().overdue)
        statistics = worker.statistics()
        assert statistics.overdue == 1
        assert 1 <= statistics.oldest_overdue < 3
        await trio.sleep_until(15)
        assert worker.statistics().in_flight == 1
        await until(lambda: not worker.statistics().in_flight)
        assert worker.statistics().overdue == 0
        worker.replace_handler("t", at_once)
        [other] = sepp.put("t")
        await until(lambda: sepp.acks)
    assert sepp.acks == [other]
    assert sepp.nacks == []
    warnings = [r.getMessage() for r in caplog.records if "goes on" in r.getMessage()]
    assert 3 <= len(warnings) <= 5
    assert job_id in warnings[0]
    assert "s after it was cancelled (its time is up)" in warnings[0]


@pytest.mark.parametrize("grace", [0.0, 3.0])
async def test_18_a_hung_handler_is_cancelled_when_the_grace_is_over(
    sepp: Sepp, client: SeppClient, grace: float
) -> None:
    ended: list[float] = []
    reasons: list[str | None] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append(trio.current_time())
            reasons.append(ctx.cancel_reason)

    worker = worker_on(client, auto_extend=True, shutdown_grace=grace)
    worker.handle("t", handler)
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        [job_id] = sepp.put("t")
        await trio.sleep(100)
        assert sepp.nacks == []
        worker.shutdown()
    assert ended == [pytest.approx(100 + grace, abs=0.01)]
    assert reasons == ["shutdown grace over"]
    [nack] = sepp.nacks
    assert nack.job_id == job_id
    assert nack.retry == records.NackRetry(delay=(0, 0))
    assert nack.reason == "interrupted: shutdown grace over"


async def test_18_a_second_signal_forces(sepp: Sepp, client: SeppClient) -> None:
    worker = worker_on(client)
    worker.handle("t", sleeper(1000))
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        sepp.put("t")
        await trio.sleep(10)
        worker.shutdown()
        await trio.sleep(5)
        assert worker.statistics().state == "draining"
        worker.shutdown(0)
        assert worker.statistics().state == "stopping"
    assert trio.current_time() < 17
    assert len(sepp.nacks) == 1


async def test_a_job_is_given_back_only_when_its_handler_has_ended(
    sepp: Sepp, client: SeppClient
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
        sepp.put("t")
        await trio.sleep(10)
        worker.shutdown(0)
        await trio.sleep(3.9)
        assert sepp.nacks == []
    assert len(sepp.nacks) == 1


async def test_jobs_that_end_within_the_grace_are_acked_even_at_its_last_moment(
    sepp: Sepp, client: SeppClient
) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await ctx.wait_stopping()
        assert ctx.stopping
        await trio.sleep({1: 0.5, 2: 0.999, 3: 1000}[ctx.priority])

    worker = worker_on(client, auto_extend=True)
    worker.handle("t", handler)
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        [first] = sepp.put("t", priority=1)
        [second] = sepp.put("t", priority=2)
        [third] = sepp.put("t", priority=3)
        await trio.sleep(50)
        sepp.fail("Ack", after(0.3, None), after(0.3, None))
        worker.shutdown(1)
    assert sorted(sepp.acks) == sorted([first, second])
    assert [nack.job_id for nack in sepp.nacks] == [third]


async def test_a_dead_server_holds_up_a_forced_stop_for_a_few_seconds_only(
    sepp: Sepp, client: SeppClient
) -> None:
    worker = worker_on(client, 60)
    worker.handle("t", sleeper(1000))
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        sepp.put("t")
        await trio.sleep(10)
        sepp.black_hole()
        worker.shutdown(0)
    assert 10 < trio.current_time() <= 16.5
    assert worker.statistics().unreported == 1


@pytest.mark.parametrize("how", ["grace", "cancel"])
async def test_a_slow_server_may_take_its_time_to_take_many_jobs_back(
    sepp: Sepp, client: SeppClient, how: str
) -> None:
    async def slow(request: records.NackRequest) -> None:
        nonlocal queue
        queue += 1
        await trio.sleep(queue * 0.1)

    queue = 0
    sepp.fail("Nack", *[slow] * 100)
    worker = worker_on(client, 300, max_in_flight=100)
    worker.handle("t", sleeper(1000))
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            await nursery.start(worker.run)
            sepp.put(*["t"] * 100)
            await until(lambda: worker.statistics().in_flight == 100)
            if how == "cancel":
                scope.cancel()
            worker.shutdown(0)
    assert len(sepp.nacks) == 100
    assert worker.statistics().unreported == 0


async def test_heartbeats_go_on_while_the_worker_drains(sepp: Sepp, client: SeppClient) -> None:
    worker = worker_on(client, 0.3, auto_extend=True)
    worker.handle("t", sleeper(1.5))
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        [job_id] = sepp.put("t")
        await trio.sleep(0.1)
        worker.shutdown()
    assert sepp.acks == [job_id]
    assert len(sepp.extend_times) >= 10


@pytest.mark.parametrize("swallow", [False, True])
async def test_26_a_client_that_ends_before_its_worker_is_said_so(
    sepp: Sepp, nursery: trio.Nursery, swallow: bool
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

    async with trio.open_nursery() as outer, sepp.client() as client:
        worker = worker_on(client)
        worker.handle("t", handler)
        outer.start_soon(run)
        await trio.sleep(1)
        sepp.put("t")
        await trio.sleep(1)
    assert reasons == ["client closed"]
    assert trio.current_time() < 6


async def test_26_a_client_that_ends_while_every_slot_is_taken_is_noticed_too(
    sepp: Sepp, nursery: trio.Nursery
) -> None:
    async def run() -> None:
        with pytest.raises(ClientClosedError, match="open_client block"):
            await worker.run()

    async with trio.open_nursery() as outer, sepp.client() as client:
        worker = worker_on(client, max_in_flight=1)
        worker.handle("t", sleeper(5))
        outer.start_soon(run)
        await trio.sleep(1)
        sepp.put("t")
        await trio.sleep(1)
    assert trio.current_time() < 7


@pytest.mark.parametrize("moment", [0.2, 0.5, 1.1])
async def test_a_drain_ends_every_kind_of_waiting_for_the_server(
    sepp: Sepp, client: SeppClient, moment: float
) -> None:
    worker = worker_on(client)
    worker.handle("t", at_once)
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        for _ in range(5):
            # Connections that break again and again, then none at all.
            await trio.sleep(0.01)
            for link in sepp.links:
                await link.aclose()
        await sepp.crash()
        await trio.sleep(moment)
        worker.shutdown()
        before = trio.current_time()
    assert trio.current_time() - before < 0.01


async def test_cancelling_run_gives_the_jobs_back_within_a_bound(
    sepp: Sepp, client: SeppClient
) -> None:
    reasons: list[str | None] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        try:
            await trio.sleep_forever()
        finally:
            reasons.append(ctx.cancel_reason)

    worker = worker_on(client)
    worker.handle("t", handler)
    with trio.move_on_after(10) as scope:
        async with trio.open_nursery() as nursery:
            await nursery.start(worker.run)
            ids = sepp.put("t", "t")
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert 10 <= trio.current_time() < 11
    assert reasons == ["worker cancelled"] * 2
    assert sorted(nack.job_id for nack in sepp.nacks) == sorted(ids)
    assert worker.statistics().state == "stopped"


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
async def test_a_handler_that_exits_the_program_releases_the_other_jobs(
    sepp: Sepp, client: SeppClient, error: BaseException
) -> None:
    async def leave(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(1)
        raise error

    worker = worker_on(client)
    worker.handle("t", sleeper(1000))
    worker.handle("leave", leave)
    ids = sepp.put("t", "t", "leave")
    with pytest.raises(type(error)) as caught:
        await worker.run()
    assert caught.value is error
    assert sorted(nack.job_id for nack in sepp.nacks) == sorted(ids)
    assert {nack.reason for nack in sepp.nacks} == {"interrupted: worker exits"}


async def test_a_handle_shuts_down_from_another_thread(sepp: Sepp, client: SeppClient) -> None:
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


async def test_a_shutdown_before_run_lets_run_return(client: SeppClient, sepp: Sepp) -> None:
    worker = worker_on(client)
    worker.handle("t", at_once)
    worker.shutdown()
    assert worker.shutdown_handle().is_shutdown
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
    assert sepp.reserve_times == []


@pytest.mark.parametrize("state", ["pause", "no server", "starting"])
async def test_a_shutdown_is_immediate_where_nothing_is_at_stake(
    sepp: Sepp, client: SeppClient, state: str
) -> None:
    worker = worker_on(client, reserve_error_backoff=60)
    worker.handle("t", at_once)
    if state == "starting":
        sepp.fail("GetServerInfo", *[Status.UNAVAILABLE] * 9)
    else:
        sepp.fail("Reserve", Status.INTERNAL)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run)
        await trio.sleep(1)
        if state == "no server":
            await sepp.crash()
            await trio.sleep(1)
        before = trio.current_time()
        worker.shutdown()
    assert trio.current_time() - before < 0.01


async def test_a_stop_is_logged_once(
    sepp: Sepp, client: SeppClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sepp_trio.worker")
    worker = worker_on(client)
    worker.handle("t", sleeper(1))
    async with running(worker):
        sepp.put("t")
        await trio.sleep(0.5)
        worker.shutdown()
        worker.shutdown()
    assert [r.getMessage() for r in caplog.records if "draining" in r.getMessage()] == [
        "draining: 1 jobs in flight"
    ]
