"""Faults of the official workers (spec/official-clients.md 6.2): reserving."""

from __future__ import annotations

import logging
import random

import pytest
import trio
from grpclib.const import Status
from trio.testing import MockClock

from sepp_trio import (
    BrokerConfig,
    EnqueueRequest,
    InvalidRequestError,
    JobCtx,
    LimitsConfig,
    Payload,
    QueueConfig,
    UnauthenticatedError,
    UnexpectedStatusError,
    UnknownQueuesError,
    open_client,
)
from sepp_trio.lease import Timer
from sepp_trio.testing import (
    Answer,
    BlackHole,
    CallLog,
    Delay,
    DropConnection,
    Fail,
    FaultPlan,
    Recorder,
    open_fault_proxy,
    open_fragile_server,
)
from tests.worker.bench import Bench, asked, open_bench
from tests.worker.helpers import at_once, running, sleeper, worker_on

FATAL = [
    (Status.UNAUTHENTICATED, UnauthenticatedError),
    (Status.PERMISSION_DENIED, UnauthenticatedError),
    (Status.INVALID_ARGUMENT, InvalidRequestError),
    (Status.UNIMPLEMENTED, UnexpectedStatusError),
]


async def test_10_an_answer_over_the_receive_limit_halves_what_is_asked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The jobs are from a time when the server took larger payloads."""
    small = BrokerConfig(limits=LimitsConfig(max_payload_bytes=1000))
    recorder, calls = Recorder(), CallLog()
    async with (
        open_fragile_server(recorder=recorder) as server,
        open_fault_proxy(server.connect, observer=calls) as proxy,
        open_client(proxy.connect, max_receive_message_bytes=200_000) as client,
    ):
        big = EnqueueRequest("emails", "t", Payload(b"x" * 60_000, "raw"))
        for _ in range(50):
            await client.enqueue(big)
        await server.restart(0.1, config=small)
        worker = worker_on(client, 2, max_in_flight=16)
        worker.handle("t", at_once)
        async with running(worker):
            await recorder.settled()
    reserves = [request.max_jobs for request in asked(calls, "Reserve")]
    assert reserves[:4] == [9, 4, 2, 2]
    assert set(reserves[2:]) <= {1, 2}
    assert "max_receive_message_bytes helps" in caplog.text
    # An answer that failed took its jobs along: their leases had to run out.
    assert recorder.jobs().expired
    assert len(recorder.jobs().acked) == 50


@pytest.mark.parametrize(
    ("payload", "limit", "jobs"), [(2**20, 64 * 2**20, 62), (2**20, 2**20, 1), (1000, 2**26, 256)]
)
async def test_10_a_reserve_asks_for_no_more_than_an_answer_can_hold(
    payload: int, limit: int, jobs: int
) -> None:
    config = BrokerConfig(limits=LimitsConfig(max_payload_bytes=payload))
    async with (
        open_bench(config, max_receive_message_bytes=limit) as bench,
        bench.running(at_once, max_in_flight=1000),
    ):
        pass
    assert bench.asked("Reserve")[0].max_jobs == jobs


@pytest.mark.parametrize(("status", "error"), FATAL)
@pytest.mark.parametrize("rpc", ["GetServerInfo", "Reserve"])
async def test_11_what_does_not_heal_is_raised_at_the_start(
    bench: Bench, rpc: str, status: Status, error: type[Exception]
) -> None:
    bench.inject(Fail(rpc, status=status))
    worker = bench.worker()
    worker.handle("t", at_once)
    with pytest.raises(error), trio.fail_after(60):
        await worker.run()
    assert trio.current_time() < 1


async def test_11_an_undeclared_queue_is_named() -> None:
    config = BrokerConfig(strict_queues=True, queues=(QueueConfig("letters"),))
    async with open_bench(config) as bench:
        worker = bench.worker()
        worker.handle("t", at_once)
        with pytest.raises(UnknownQueuesError, match="emails"), trio.fail_after(60):
            await worker.run()


async def test_11_a_refused_key_comes_plain_out_of_nursery_start(bench: Bench) -> None:
    bench.inject(Fail("GetServerInfo", status=Status.UNAUTHENTICATED))
    worker = bench.worker()
    worker.handle("t", at_once)
    async with trio.open_nursery() as nursery:
        with pytest.raises(UnauthenticatedError):
            await nursery.start(worker.run)


async def test_11_later_it_is_logged_as_an_error_and_retried(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.inject(Fail("Reserve", 2, Status.UNAUTHENTICATED, times=4))
    async with bench.running(at_once):
        for _ in range(3):
            await bench.put("t")
            await bench.settled()
    assert len(bench.jobs().acked) == 3
    errors = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 4
    assert "Reserve failed, again in 1 s: UNAUTHENTICATED" in errors[0].getMessage()
    assert "again in 8 s" in errors[3].getMessage()


async def test_11_or_raised_when_running_jobs_have_ended(bench: Bench) -> None:
    bench.inject(Fail("Reserve", 2, Status.UNAUTHENTICATED))
    worker = bench.worker(on_fatal="raise", max_in_flight=2)
    worker.handle("t", sleeper(10))
    await bench.put("t")
    with pytest.raises(UnauthenticatedError), trio.fail_after(60):
        await worker.run()
    assert bench.jobs().acked
    assert 10 <= trio.current_time() < 11


async def test_12_every_status_of_a_reserve_is_survived(bench: Bench) -> None:
    statuses = [s for s in Status if s is not Status.OK]
    worker = bench.worker(auto_extend=True, reserve_error_backoff=0.1)
    worker.handle("t", at_once)
    worker.handle("long", sleeper(500))
    async with running(worker):
        await bench.put("long")
        await trio.sleep(1)
        bench.inject(
            *[Fail("Reserve", n, status) for n, status in enumerate(statuses, 1)],
            Answer("Reserve", len(statuses) + 1, b"\xff\xff"),
            Answer("Reserve", len(statuses) + 2, b"\x0a\x7f"),
        )
        await bench.put("t")
        await bench.settled()
    assert [job.attempt for job in bench.jobs().acked] == [1, 1]
    # Once each: the cancelled call and the deadline, too.
    assert worker.statistics().reserves_failed == len(statuses) + 2


async def test_24_reporting_does_not_hold_a_slot(bench: Bench) -> None:
    bench.inject(Delay("Ack", request=0.05, times=None))
    await bench.put(*["t"] * 160)
    async with bench.running(at_once, max_in_flight=16):
        await bench.settled()
        # With the slot held: 160 jobs in batches of 16, 50 ms each: 0.5 s.
        assert trio.current_time() < 0.45
    assert [request.max_jobs for request in bench.asked("Reserve")][:5] == [16] * 5


async def test_24_at_most_twice_the_slots_are_reporting(bench: Bench) -> None:
    bench.inject(Delay("Ack", request=5, times=None))
    most = 0
    await bench.put(*["t"] * 30)
    async with bench.running(at_once, max_in_flight=4) as worker:
        while len(bench.jobs().acked) < 20:
            await trio.sleep(0.5)
            most = max(most, worker.statistics().reporting)
            # No more are reserved than that.
            assert len(bench.jobs().leased) <= 8
    assert most == 8


async def test_25_polling_goes_on_when_the_server_is_back(bench: Bench) -> None:
    for outage in (1.0, 20.0, 60.0, 600.0):
        worker = bench.worker()
        worker.handle("t", at_once)
        async with running(worker):
            await bench.put("t")
            await bench.settled()
            bench.inject(DropConnection(0), BlackHole(0, outage))
            await trio.sleep(outage)
            await bench.put("t")
            await bench.settled()
        job = bench.jobs()[-1]
        assert job.done_at is not None
        assert job.done_at - job.enqueued_at < 6  # a dial may hang for connect_timeout
    assert len(bench.jobs().acked) == 8


async def test_27_pauses_are_jittered(bench: Bench) -> None:
    """A fleet that failed together does not come back together."""
    pauses: list[float] = []
    for seed in range(12):
        random.seed(seed)
        calls = CallLog()
        async with (
            open_fault_proxy(bench.broker, FaultPlan((Fail("Reserve"),)), observer=calls) as proxy,
            open_client(proxy.connect) as client,
        ):
            worker = worker_on(client, wait_timeout=0.1)
            worker.handle("t", at_once)
            async with running(worker):
                await trio.sleep(1.01)
        first, second, *_ = calls.times("Reserve")
        pauses.append(second - first)
    assert all(0.5 <= pause <= 1.01 for pause in pauses)
    assert max(pauses) - min(pauses) > 0.2


async def test_an_empty_answer_at_the_end_of_the_wait_is_followed_at_once(bench: Bench) -> None:
    async with bench.running(at_once, wait_timeout=0.05):
        await trio.sleep(1)
    assert 19 <= len(bench.calls.of("Reserve")) <= 22


async def test_a_reserve_asks_for_the_free_slots(bench: Bench) -> None:
    async with bench.running(sleeper(50), 60, max_in_flight=16, wait_timeout=1):
        await trio.sleep(0.1)
        [first] = bench.asked("Reserve")
        assert (first.queues, first.max_jobs) == (["emails"], 16)
        assert (first.wait_timeout, first.lease_duration) == ((1, 0), (60, 0))
        assert first.worker_id == "w"
        await bench.put(*["t"] * 5)
        await trio.sleep(0.1)
        assert bench.asked("Reserve")[-1].max_jobs == 11
        await bench.put(*["t"] * 11)
        await trio.sleep(20)
        assert len(bench.calls.of("Reserve")) == 2


async def test_max_jobs_caps_it(bench: Bench) -> None:
    async with bench.running(at_once, max_jobs=3):
        pass
    assert bench.asked("Reserve")[0].max_jobs == 3


async def test_max_in_flight_can_be_set_while_it_runs(bench: Bench) -> None:
    running_now = most = 0

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        nonlocal running_now, most
        running_now += 1
        most = max(most, running_now)
        await trio.sleep(1)
        running_now -= 1

    await bench.put(*["t"] * 60)
    async with bench.running(handler, max_in_flight=2) as worker:
        await trio.sleep(3.5)
        assert most == 2
        worker.max_in_flight = 10
        await trio.sleep(0.1)
        assert running_now == 10
        await trio.sleep(1.9)
        assert most == 10
        worker.max_in_flight = 1
        await trio.sleep(1.5)
        most = running_now
        await trio.sleep(3)
        assert most == 1
        assert worker.statistics().max_in_flight == 1
    with pytest.raises(ValueError, match="max_in_flight must be between 1"):
        worker.max_in_flight = 0


async def test_short_jobs_are_reserved_ahead_under_heartbeat(bench: Bench) -> None:
    bench.inject(Delay("Reserve", reply=0.006, times=None))
    waiting = []
    await bench.put(*["t"] * 600)
    async with bench.running(sleeper(0.01), 3, max_in_flight=16, auto_extend=True) as worker:
        began = trio.current_time()
        while worker.statistics().acked < 560:
            waiting.append(worker.statistics().waiting)
            await trio.sleep(0.005)
        share = worker.statistics().acked * 0.01 / 16 / (trio.current_time() - began)
        await bench.settled()
    assert share > 0.93
    assert 8 <= max(waiting) <= 16
    assert len(bench.jobs().acked) == 600


async def test_nothing_is_reserved_ahead_without_auto_extend(bench: Bench) -> None:
    await bench.put(*["t"] * 300)
    async with bench.running(sleeper(0.01), max_in_flight=16):
        await bench.settled()
    assert max(request.max_jobs for request in bench.asked("Reserve")) == 16


async def test_no_jobs_are_taken_on_while_beats_are_late(bench: Bench) -> None:
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)
    wheel = bench.client._keeper.wheel
    await bench.put(*["t"] * 300)
    async with bench.running(sleeper(0.1), 8, max_in_flight=4, auto_extend=True):
        await trio.sleep(1)
        began = trio.current_time()
        for turn in range(128):  # each takes the program a quarter of a second
            for _ in range(128):
                wheel.start(Timer(lambda: clock.jump(2**-9)), began + turn / 100)
        await bench.settled()
    reserves = bench.calls.times("Reserve")
    assert [at for at in reserves if began + 2 < at < began + 30] == []
    assert min(reserves) < began < began + 32 < max(reserves)
    assert len(bench.jobs().acked) == 300


async def test_under_a_deadline_the_last_reserve_is_answered_before_it(bench: Bench) -> None:
    worker = bench.worker(wait_timeout=5)
    worker.handle("t", at_once)
    with trio.move_on_after(12):
        await worker.run()
    assert 12 <= trio.current_time() < 12.6
    waits = [request.wait_timeout for request in bench.asked("Reserve")]
    assert waits[:2] == [(5, 0), (5, 0)]
    assert {call.end for call in bench.calls.of("Reserve")} == {"answered"}
