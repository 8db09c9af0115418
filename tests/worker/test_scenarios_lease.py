"""Faults of the official workers (spec/official-clients.md 6.2): leases and heartbeats."""

from __future__ import annotations

import logging

import pytest
import trio
from grpclib.const import Status

from sepp_trio import JobCtx, Payload, SeppClient
from sepp_trio.wire import records
from tests.client.fake import after
from tests.worker.helpers import Sepp, running, sleeper, until, worker_on


class Watched:
    """A handler that says when it began, was cancelled, and why."""

    def __init__(self, seconds: float = 3600) -> None:
        self.seconds = seconds
        self.began: list[float] = []
        self.cancelled: list[float] = []
        self.ended: list[float] = []
        self.reasons: list[str | None] = []

    async def __call__(self, payload: Payload | None, ctx: JobCtx) -> None:
        self.began.append(trio.current_time())
        try:
            await trio.sleep(self.seconds)
        except trio.Cancelled:
            self.cancelled.append(trio.current_time())
            self.reasons.append(ctx.cancel_reason)
            raise
        self.ended.append(trio.current_time())


async def test_01_a_hanging_extend_does_not_outlive_the_lease(
    sepp: Sepp, client: SeppClient
) -> None:
    handler = Watched()
    worker = worker_on(client, 30, auto_extend=True, shutdown_grace=0)
    worker.handle("t", handler)
    async with running(worker):
        sepp.put("t")
        await until(lambda: handler.began)
        await trio.sleep_until(handler.began[0] + 5)
        sepp.black_hole()
        await until(lambda: handler.cancelled)
        [cancelled] = handler.cancelled
        # The lease ends 30 s after its grant; half a second of it is left.
        assert 29 <= cancelled - handler.began[0] <= 30
        assert handler.reasons == ["lease lost"]
        sepp.heal()
    assert sepp.acks == []
    assert sepp.nacks == []


@pytest.mark.parametrize("ahead", [0.0, 3600.0, -3600.0, 20.0, -20.0])
async def test_02_03_the_servers_clock_may_be_anywhere(nursery: trio.Nursery, ahead: float) -> None:
    sepp = Sepp(nursery)
    sepp.ahead = ahead
    async with sepp.client() as client:
        worker = worker_on(client, 6, auto_extend=True)
        handler = Watched(14)
        worker.handle("t", handler)
        async with running(worker):
            [job_id] = sepp.put("t")
            await until(lambda: sepp.acks)
    assert sepp.acks == [job_id]
    assert handler.cancelled == []
    # Every 2 s, whatever the clock.
    assert 6 <= len(sepp.extend_times) <= 8
    gaps = [b - a for a, b in zip(sepp.extend_times, sepp.extend_times[1:], strict=False)]
    assert all(1.9 < gap < 2.2 for gap in gaps)


@pytest.mark.parametrize("ahead", [0.0, 3600.0, -3600.0])
async def test_03_the_deadline_is_the_servers_whatever_its_clock(
    nursery: trio.Nursery, ahead: float
) -> None:
    sepp = Sepp(nursery)
    sepp.ahead = ahead
    async with sepp.client() as client:
        worker = worker_on(client, 3)
        handler = Watched()
        worker.handle("t", handler)
        async with running(worker):
            await trio.sleep(1.5)
            [job_id] = sepp.put("t")
            await until(lambda: handler.cancelled)
            end = sepp.leases[job_id].expires
        # Not later than the server's end, and not much sooner.
        assert end - 0.2 < handler.cancelled[0] < end


async def test_04_a_failed_beat_is_repeated_while_the_lease_lasts(
    sepp: Sepp, client: SeppClient
) -> None:
    worker = worker_on(client, 3, auto_extend_interval=2.2)
    handler = Watched(10)
    worker.handle("t", handler)
    async with running(worker):
        sepp.put("t")
        await until(lambda: handler.began)
        sepp.fail("Extend", Status.UNAVAILABLE, Status.INTERNAL, Status.UNAUTHENTICATED)
        await until(lambda: sepp.acks)
    assert handler.cancelled == []
    first = sepp.extend_times[0]
    quick = [time for time in sepp.extend_times if time < first + 0.6]
    assert len(quick) == 4  # three failures, then good


async def test_04_an_interval_not_shorter_than_the_lease_is_refused(client: SeppClient) -> None:
    with pytest.raises(ValueError, match="auto_extend_interval must be shorter than"):
        worker_on(client, 3, auto_extend_interval=3)


async def test_05_the_heartbeat_goes_on_during_a_slow_ack(sepp: Sepp, client: SeppClient) -> None:
    worker = worker_on(client, 3, auto_extend=True)
    worker.handle("t", sleeper(0.5))
    async with running(worker):
        [job_id] = sepp.put("t")
        sepp.fail("Ack", after(9, records.AckResponse("")))
        await until(lambda: sepp.acks)
        # With heartbeats its lease never ended.
        assert trio.current_time() < sepp.leases[job_id].expires
    assert len(sepp.extend_times) >= 2
    assert worker.statistics().acked == 1


async def test_06_an_ack_is_repeated_until_the_lease_ends(sepp: Sepp, client: SeppClient) -> None:
    worker = worker_on(client, 10)
    worker.handle("t", sleeper(0))
    async with running(worker):
        sepp.fail(
            "Ack", Status.UNAVAILABLE, Status.INTERNAL, Status.UNAUTHENTICATED, Status.UNKNOWN
        )
        [job_id] = sepp.put("t")
        await until(lambda: sepp.acks)
    assert sepp.acks == [job_id]
    assert len(sepp.requests("Ack")) == 5
    assert sepp.nacks == []
    assert worker.statistics().acked == 1


async def test_06_not_found_after_a_repeat_means_that_the_ack_arrived(
    sepp: Sepp, client: SeppClient, caplog: pytest.LogCaptureFixture
) -> None:
    worker = worker_on(client, 10)
    worker.handle("t", sleeper(0))
    async with running(worker):
        sepp.fail("Ack", Status.UNAVAILABLE, Status.NOT_FOUND)
        sepp.put("t")
        await until(lambda: worker.statistics().acked)
    assert worker.statistics().lost == 0
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


async def test_06_not_found_at_once_means_that_the_lease_was_lost(
    sepp: Sepp, client: SeppClient
) -> None:
    worker = worker_on(client, 10)
    worker.handle("t", sleeper(0))
    async with running(worker):
        sepp.fail("Ack", Status.NOT_FOUND)
        sepp.put("t")
        await until(lambda: worker.statistics().lost)
    assert len(sepp.requests("Ack")) == 1
    assert worker.statistics().acked == 0


async def test_06_what_cannot_be_acked_is_given_up_at_the_end_of_the_lease(
    sepp: Sepp, client: SeppClient
) -> None:
    worker = worker_on(client, 4)
    worker.handle("t", sleeper(0))
    async with running(worker):
        sepp.fail("Ack", *[Status.UNAVAILABLE] * 1000)
        sepp.put("t")
        await until(lambda: worker.statistics().unreported)
        assert trio.current_time() <= 4.1
    # Quickly, but not in a hot loop.
    assert 4 < len(sepp.requests("Ack")) < 40


async def test_13_no_kind_of_failure_stops_the_heartbeat(sepp: Sepp, client: SeppClient) -> None:
    worker = worker_on(client, 6, auto_extend=True)
    handler = Watched(60)
    worker.handle("t", handler)
    async with running(worker):
        sepp.put("t")
        await until(lambda: handler.began)
        for _ in range(6):
            await trio.sleep(5)
            sepp.fail("Extend", Status.DATA_LOSS, b"\xff\xff", records.ExtendResponse("x", None))
        await until(lambda: sepp.acks)
    assert handler.cancelled == []


@pytest.mark.parametrize("status", [Status.NOT_FOUND, Status.FAILED_PRECONDITION])
async def test_a_definite_answer_cancels_the_handler_at_once(
    sepp: Sepp, client: SeppClient, status: Status
) -> None:
    worker = worker_on(client, 60, auto_extend=True)
    handler = Watched()
    worker.handle("t", handler)
    async with running(worker):
        sepp.put("t")
        await until(lambda: handler.began)
        sepp.fail("Extend", status)
        await until(lambda: handler.cancelled)
        assert handler.cancelled[0] - sepp.extend_times[0] < 0.01
        other = sepp.put("t")
        worker.replace_handler("t", sleeper(0))
        await until(lambda: sepp.acks == other)
    assert handler.reasons == ["lease lost"]
    assert sepp.nacks == []


async def test_19_the_heartbeat_never_shortens_what_the_handler_extended(
    sepp: Sepp, client: SeppClient
) -> None:
    ends: list[float] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await ctx.extend(200)
        while trio.current_time() < 400:
            ends.append(sepp.leases[ctx.id].expires)
            assert abs(ctx.lease_deadline - sepp.leases[ctx.id].expires) < 0.1
            await trio.sleep(1)

    worker = worker_on(client, 9, auto_extend=True)
    worker.handle("t", handler)
    async with running(worker):
        sepp.put("t")
        await until(lambda: sepp.acks)
    assert ends == sorted(ends)
    beats = sepp.extend_times[1:]
    assert beats[0] > 190  # not before a beat would lengthen the lease


async def test_20_an_extend_through_the_client_is_the_same_as_one_through_the_context(
    sepp: Sepp, client: SeppClient
) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        expiry = await client.extend(ctx, 100)
        assert ctx.lease_expires_at == expiry
        assert 99 < ctx.remaining() <= 100
        await trio.sleep(50)

    worker = worker_on(client, 9, auto_extend=True)
    worker.handle("t", handler)
    async with running(worker):
        sepp.put("t")
        await until(lambda: sepp.acks)
    assert len(sepp.extend_times) == 1


async def test_21_without_auto_extend_a_handler_is_cancelled_when_its_lease_ends(
    sepp: Sepp, client: SeppClient
) -> None:
    worker = worker_on(client, 10)
    handler = Watched()
    worker.handle("t", handler)
    async with running(worker):
        [job_id] = sepp.put("t")
        await until(lambda: handler.cancelled)
        assert 9.5 < handler.cancelled[0] < sepp.leases[job_id].expires
    assert handler.reasons == ["lease lost"]
    assert sepp.acks == []
    assert sepp.nacks == []
    assert sepp.extend_times == []
    assert worker.statistics().lost == 1


async def test_22_jobs_beyond_the_free_slots_are_kept_under_heartbeat(
    sepp: Sepp, client: SeppClient
) -> None:
    worker = worker_on(client, 3, auto_extend=True, max_in_flight=2)
    handler = Watched(4)
    worker.handle("t", handler)

    async def too_many(request: records.ReserveRequest) -> None:
        request.max_jobs = 8

    async with running(worker):
        sepp.fail("Reserve", too_many)
        ids = sepp.put(*["t"] * 8)
        await until(lambda: len(sepp.acks) == 8)
    assert sorted(sepp.acks) == sorted(ids)
    assert handler.cancelled == []


async def test_a_lease_may_be_shorter_than_was_asked_for(sepp: Sepp, client: SeppClient) -> None:
    sepp.longest = 0.6
    worker = worker_on(client, 60, auto_extend=True)
    handler = Watched(2)
    worker.handle("t", handler)
    async with running(worker):
        sepp.put("t")
        await until(lambda: sepp.extend_times)
        assert 0.15 < sepp.extend_times[0] - handler.began[0] < 0.4
        sepp.longest = 0.3
        await until(lambda: len(sepp.extend_times) > 3)
        assert sepp.extend_times[-1] - sepp.extend_times[-2] < 0.15
        await until(lambda: sepp.acks)
    assert handler.cancelled == []


async def test_a_long_job_is_extended_all_along(sepp: Sepp, client: SeppClient) -> None:
    worker = worker_on(client, 10, auto_extend=True)
    handler = Watched(600)
    worker.handle("t", handler)
    async with running(worker):
        [job_id] = sepp.put("t")
        await until(lambda: sepp.acks, limit=700)
    assert 60 <= len(sepp.extend_times) <= 200
    assert sepp.acks == [job_id]


async def test_a_stale_delivery_is_not_started(sepp: Sepp, client: SeppClient) -> None:
    """A reserve's answer that was stuck on the way until its leases were over."""
    worker = worker_on(client, 3, wait_timeout=20, auto_extend=True)
    handler = Watched(1)
    worker.handle("t", handler)
    async with running(worker):
        await trio.sleep(0.5)
        for link in sepp.links:
            link.freeze()
        sepp.put("t")
        await trio.sleep(3.3)
        for link in sepp.links:
            link.thaw()
        await until(lambda: worker.statistics().lost)
        assert handler.began == []
        [again] = sepp.put("t")
        await until(lambda: sepp.acks == [again])
    assert sepp.nacks == []


async def test_hold_and_worker_share_one_lease(sepp: Sepp, client: SeppClient) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        async with client.hold(ctx) as lease:
            await trio.sleep(5)
            await lease.ack()

    worker = worker_on(client, 3, auto_extend=True)
    worker.handle("t", handler)
    async with running(worker):
        [job_id] = sepp.put("t")
        await until(lambda: sepp.acks)
    assert sepp.acks == [job_id]
