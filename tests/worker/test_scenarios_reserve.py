"""Faults of the official workers (spec/official-clients.md 6.2): reserving."""

from __future__ import annotations

import logging
import random

import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from sepp_trio import (
    InvalidRequestError,
    JobCtx,
    Payload,
    SeppClient,
    UnauthenticatedError,
    UnexpectedStatusError,
    UnknownQueuesError,
    wire,
)
from sepp_trio.wire import records
from tests.client.fake import after, job_record, reserved
from tests.worker.helpers import Sepp, at_once, running, sleeper, until, worker_on

FATAL = [
    (Status.UNAUTHENTICATED, UnauthenticatedError),
    (Status.PERMISSION_DENIED, UnauthenticatedError),
    (Status.INVALID_ARGUMENT, InvalidRequestError),
    (Status.UNIMPLEMENTED, UnexpectedStatusError),
]


async def test_10_an_answer_over_the_receive_limit_halves_what_is_asked(
    sepp: Sepp, caplog: pytest.LogCaptureFixture
) -> None:
    # The server takes larger payloads than it says.
    sepp.info["max_payload_bytes"] = 1000
    async with sepp.client(max_receive_message_bytes=200_000) as client:
        worker = worker_on(client, 2, max_in_flight=16)
        worker.handle("t", at_once)
        async with running(worker):
            big = records.Payload(b"x" * 60_000, "raw")
            ids = sepp.put(*["t"] * 50, payload=big)
            await until(lambda: worker.statistics().acked)
            # The answers that failed took their jobs along: their leases have to run out.
            lost = [i for i in ids if i not in sepp.acks and i in sepp.leases]
            assert len(lost) >= 28
            await until(lambda: len(sepp.acks) == 50 - 28)
    asked = [request.max_jobs for request in sepp.requests("Reserve")]
    assert asked[:4] == [16, 8, 4, 2]
    assert set(asked[3:]) <= {1, 2}
    assert "max_receive_message_bytes helps" in caplog.text


@pytest.mark.parametrize(
    ("payload", "limit", "asked"), [(2**20, 64 * 2**20, 62), (2**20, 2**20, 1), (1000, 2**26, 256)]
)
async def test_10_a_reserve_asks_for_no_more_than_an_answer_can_hold(
    sepp: Sepp, payload: int, limit: int, asked: int
) -> None:
    sepp.info.update(max_payload_bytes=payload, max_custom_total_bytes=16384)
    async with sepp.client(max_receive_message_bytes=limit) as client:
        worker = worker_on(client, max_in_flight=1000)
        worker.handle("t", at_once)
        async with running(worker):
            pass
    assert sepp.requests("Reserve")[0].max_jobs == asked


@pytest.mark.parametrize(("status", "error"), FATAL)
@pytest.mark.parametrize("rpc", ["GetServerInfo", "Reserve"])
async def test_11_what_does_not_heal_is_raised_at_the_start(
    sepp: Sepp, client: SeppClient, rpc: str, status: Status, error: type[Exception]
) -> None:
    sepp.fail(rpc, status)
    worker = worker_on(client)
    worker.handle("t", at_once)
    with pytest.raises(error):
        await worker.run()
    assert trio.current_time() < 1


async def test_11_an_undeclared_queue_is_named(sepp: Sepp, client: SeppClient) -> None:
    sepp.fail("Reserve", GRPCError(Status.FAILED_PRECONDITION, "undeclared: emails"))
    worker = worker_on(client)
    worker.handle("t", at_once)
    with pytest.raises(UnknownQueuesError, match="undeclared: emails"):
        await worker.run()


async def test_11_a_refused_key_comes_plain_out_of_nursery_start(
    sepp: Sepp, client: SeppClient
) -> None:
    sepp.fail("GetServerInfo", Status.UNAUTHENTICATED)
    worker = worker_on(client)
    worker.handle("t", at_once)
    async with trio.open_nursery() as nursery:
        with pytest.raises(UnauthenticatedError):
            await nursery.start(worker.run)


async def test_11_later_it_is_logged_as_an_error_and_retried(
    sepp: Sepp, client: SeppClient, caplog: pytest.LogCaptureFixture
) -> None:
    worker = worker_on(client)
    worker.handle("t", at_once)
    async with running(worker):
        sepp.put("t")
        await until(lambda: sepp.acks)
        sepp.fail("Reserve", *[Status.UNAUTHENTICATED] * 4)
        sepp.put("t")
        await until(lambda: len(sepp.acks) == 2)
        [second] = sepp.put("t")
        await until(lambda: second in sepp.acks)
    errors = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 4
    assert "Reserve failed, again in 1 s: UNAUTHENTICATED" in errors[0].getMessage()
    assert "again in 8 s" in errors[3].getMessage()


async def test_11_or_raised_when_running_jobs_have_ended(sepp: Sepp, client: SeppClient) -> None:
    worker = worker_on(client, on_fatal="raise", max_in_flight=2)
    worker.handle("t", sleeper(10))
    [job_id] = sepp.put("t")
    sepp.fail("Reserve", None, after(1, Status.UNAUTHENTICATED))

    with pytest.raises(UnauthenticatedError):
        await worker.run()
    assert sepp.acks == [job_id]
    assert 10 <= trio.current_time() < 11


async def test_12_every_status_of_a_reserve_is_survived(sepp: Sepp, client: SeppClient) -> None:
    worker = worker_on(client, auto_extend=True, reserve_error_backoff=0.1)
    worker.handle("t", sleeper(0))
    worker.handle("long", sleeper(500))
    async with running(worker):
        [long] = sepp.put("long")
        await trio.sleep(1)
        statuses = [s for s in Status if s is not Status.OK]
        sepp.fail("Reserve", *statuses, b"\xff\xff", b"\x0a\x7f")
        [job_id] = sepp.put("t")
        await until(lambda: job_id in sepp.acks)
        await until(lambda: long in sepp.acks)
    # Once each: the cancelled call and the deadline, too.
    assert worker.statistics().reserves_failed == len(statuses) + 2
    assert sepp.nacks == []


async def test_23_a_bad_job_is_dead_lettered_and_does_not_take_the_others_along(
    sepp: Sepp, client: SeppClient, caplog: pytest.LogCaptureFixture
) -> None:
    worker = worker_on(client)
    worker.handle("t", at_once)
    bad = [
        job_record(id="bad-1", job_type="t", priority=12),
        job_record(id="bad-2", job_type="", priority=1),
        job_record(id="bad-3", job_type="t", enqueued_at=None),
        job_record(
            id="bad-4", job_type="t", custom=wire.encode_custom({"k": records.PrimitiveValue()})
        ),
        job_record(id="bad-5", job_type="t", payload=records.Payload(b"", "raw")),
    ]
    nameless = job_record(id="", job_type="t")
    async with running(worker):
        [first] = sepp.put("t")
        sepp.ready.extend([*bad, nameless])
        sepp.put_raw(b"\xff\xff\xff")
        [second] = sepp.put("t")
        await until(lambda: len(sepp.acks) == 2)
        await until(lambda: len(sepp.nacks) >= 5)
        assert sorted(sepp.acks) == sorted([first, second])
    assert sorted(nack.job_id for nack in sepp.nacks) == [f"bad-{n}" for n in range(1, 6)]
    assert all(nack.retry and nack.retry.dead_letter == () for nack in sepp.nacks)
    assert all("cannot read the job" in (nack.reason or "") for nack in sepp.nacks)
    assert worker.statistics().malformed == 7
    assert "job bad-1 attempt 1: cannot be read, dead-lettered: priority is 12" in caplog.text


async def test_23_only_bad_jobs_are_no_hot_loop(
    sepp: Sepp, client: SeppClient, caplog: pytest.LogCaptureFixture
) -> None:
    worker = worker_on(client)
    worker.handle("t", at_once)
    sepp.fail("Reserve", *[reserved(b"\xff\xff\xff")] * 10_000)
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        await trio.sleep(10)
        worker.shutdown()
    assert len(sepp.reserve_times) < 90
    assert len(caplog.records) < 90


async def test_24_reporting_does_not_hold_a_slot(sepp: Sepp, client: SeppClient) -> None:
    worker = worker_on(client, max_in_flight=16)
    worker.handle("t", at_once)

    async def slow(request: records.AckRequest) -> None:
        await trio.sleep(0.05)

    sepp.fail("Ack", *[slow] * 160)
    sepp.put(*["t"] * 160)
    async with running(worker):
        await until(lambda: len(sepp.acks) == 160)
        # With the slot held: 160 jobs in batches of 16, 50 ms each: 0.5 s.
        assert trio.current_time() < 0.45
    asked = [request.max_jobs for request in sepp.requests("Reserve")]
    assert asked[:5] == [16] * 5


async def test_24_at_most_twice_the_slots_are_reporting(sepp: Sepp, client: SeppClient) -> None:
    worker = worker_on(client, max_in_flight=4)
    worker.handle("t", at_once)
    most = 0

    async def stuck(request: records.AckRequest) -> None:
        nonlocal most
        most = max(most, worker.statistics().reporting)
        await trio.sleep(5)

    sepp.fail("Ack", *[stuck] * 100)
    sepp.put(*["t"] * 100)
    async with running(worker):
        await until(lambda: len(sepp.acks) >= 20)
        sepp.ready.clear()
    assert most <= 8


async def test_25_polling_goes_on_when_the_server_is_back(sepp: Sepp, client: SeppClient) -> None:
    for outage in (1.0, 20.0, 60.0, 600.0):
        worker = worker_on(client)
        worker.handle("t", at_once)
        async with running(worker):
            sepp.put("t")
            await until(lambda: sepp.acks)
            await sepp.crash()
            await trio.sleep(outage)
            sepp.heal()
            back = trio.current_time()
            sepp.put("t")
            await until(lambda: len(sepp.acks) == 2)
            assert trio.current_time() - back < 6  # a dial may hang for connect_timeout
        sepp.acks.clear()


async def test_27_pauses_are_jittered(nursery: trio.Nursery) -> None:
    """A fleet that failed together does not come back together."""
    seconds: list[float] = []
    for seed in range(12):
        random.seed(seed)
        sepp = Sepp(nursery)
        async with sepp.client() as client:
            worker = worker_on(client)
            worker.handle("t", at_once)
            sepp.fail("Reserve", Status.UNAVAILABLE)
            async with running(worker):
                await until(lambda sepp=sepp: len(sepp.reserve_times) == 2)  # type: ignore[misc]
            seconds.append(sepp.reserve_times[1] - sepp.reserve_times[0])
    assert all(0.5 <= pause <= 1.01 for pause in seconds)
    assert max(seconds) - min(seconds) > 0.2


async def test_an_empty_answer_that_comes_too_early_is_backed_off(
    sepp: Sepp, client: SeppClient
) -> None:
    worker = worker_on(client)
    worker.handle("t", at_once)
    sepp.fail("Reserve", *[reserved()] * 1000)
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        await trio.sleep(2)
        assert 8 <= len(sepp.reserve_times) < 20
        sepp._failing["Reserve"].clear()
        sepp.put("t")
        await until(lambda: sepp.acks, 0.3)
        before = trio.current_time()
        sepp.put("t")
        await until(lambda: len(sepp.acks) == 2, 0.01)
        assert trio.current_time() - before < 0.01
        worker.shutdown()


async def test_an_empty_answer_at_the_end_of_the_wait_is_followed_at_once(
    sepp: Sepp, client: SeppClient
) -> None:
    worker = worker_on(client, wait_timeout=0.05)
    worker.handle("t", at_once)
    async with running(worker):
        await trio.sleep(1)
    assert 19 <= len(sepp.reserve_times) <= 22


async def test_a_reserve_asks_for_the_free_slots(sepp: Sepp, client: SeppClient) -> None:
    worker = worker_on(client, 60, max_in_flight=16, wait_timeout=1)
    worker.handle("t", sleeper(100))
    async with running(worker):
        await trio.sleep(0.1)
        [first] = sepp.requests("Reserve")
        assert (first.queues, first.max_jobs) == (["emails"], 16)
        assert (first.wait_timeout, first.lease_duration) == ((1, 0), (60, 0))
        assert first.worker_id == "w"
        sepp.put(*["t"] * 5)
        await trio.sleep(0.1)
        assert sepp.requests("Reserve")[-1].max_jobs == 11
        sepp.put(*["t"] * 11)
        await trio.sleep(20)
        assert len(sepp.requests("Reserve")) == 2
        sepp.leases.clear()


async def test_max_jobs_caps_it(sepp: Sepp, client: SeppClient) -> None:
    worker = worker_on(client, max_jobs=3)
    worker.handle("t", at_once)
    async with running(worker):
        pass
    assert sepp.requests("Reserve")[0].max_jobs == 3


async def test_max_in_flight_can_be_set_while_it_runs(sepp: Sepp, client: SeppClient) -> None:
    running_now = most = 0

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        nonlocal running_now, most
        running_now += 1
        most = max(most, running_now)
        await trio.sleep(1)
        running_now -= 1

    worker = worker_on(client, max_in_flight=2)
    worker.handle("t", handler)
    sepp.put(*["t"] * 60)
    async with running(worker):
        await trio.sleep(3.5)
        assert most == 2
        worker.max_in_flight = 10
        await trio.sleep(2)
        assert most == 10
        worker.max_in_flight = 1
        await trio.sleep(1.5)
        most = running_now
        await trio.sleep(3)
        assert most == 1
        assert worker.statistics().max_in_flight == 1
        sepp.ready.clear()
    with pytest.raises(ValueError, match="max_in_flight must be between 1"):
        worker.max_in_flight = 0


async def test_short_jobs_are_reserved_ahead_under_heartbeat(
    sepp: Sepp, client: SeppClient
) -> None:
    busy = 0.0

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        nonlocal busy
        await trio.sleep(0.01)
        busy += 0.01

    async def slow_link(request: records.ReserveRequest) -> None:
        await trio.sleep(0.002)

    waiting = []
    worker = worker_on(client, 3, max_in_flight=16, auto_extend=True)
    worker.handle("t", handler)
    sepp.put(*["t"] * 3000)
    sepp.fail("Reserve", *[slow_link] * 3000)
    async with running(worker):
        began = trio.current_time()
        while len(sepp.acks) < 2900:
            waiting.append(worker.statistics().waiting)
            await trio.sleep(0.005)
        share = busy / 16 / (trio.current_time() - began)
    assert share > 0.93
    assert 4 <= max(waiting) <= 8


async def test_nothing_is_reserved_ahead_without_auto_extend(
    sepp: Sepp, client: SeppClient
) -> None:
    worker = worker_on(client, max_in_flight=16)
    worker.handle("t", sleeper(0.01))
    sepp.put(*["t"] * 300)
    async with running(worker):
        await until(lambda: len(sepp.acks) == 300)
    assert max(request.max_jobs for request in sepp.requests("Reserve")) == 16


async def test_under_a_deadline_the_last_reserve_is_answered_before_it(
    sepp: Sepp, client: SeppClient
) -> None:
    worker = worker_on(client, wait_timeout=5)
    worker.handle("t", at_once)
    with trio.move_on_after(12):
        await worker.run()
    assert 12 <= trio.current_time() < 12.6
    waits = [request.wait_timeout for request in sepp.requests("Reserve")]
    assert waits[:2] == [(5, 0), (5, 0)]
    assert sepp.open_calls == 0
