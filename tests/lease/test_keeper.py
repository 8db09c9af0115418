"""Many leases under one keeper: beats are spread, clocks looked after, nothing is left over."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from itertools import pairwise

import pytest
import trio
from grpclib.const import Status

from sepp_trio import (
    BrokerConfig,
    EnqueueRequest,
    Job,
    LeaseLostError,
    LimitsConfig,
    ReserveOptions,
    SeppClient,
    open_client,
)
from sepp_trio.testing import (
    BlackHole,
    CallLog,
    Delay,
    DropConnection,
    Fail,
    FaultProxy,
    FragileServer,
    Recorder,
    open_fault_proxy,
    open_fragile_server,
    open_recording_broker,
)
from tests.worker.bench import Bench


async def reserve(client: SeppClient, count: int) -> list[Job]:
    options = ReserveOptions(["emails"], 30, wait_timeout=0, max_jobs=256)
    jobs: list[Job] = []
    while len(jobs) < count:
        jobs += await client.reserve(options)
    return jobs


async def test_first_beats_of_leases_granted_together_are_spread(bench: Bench) -> None:
    keeper = bench.client._keeper
    await bench.put(*["t"] * 1000)
    for job in await reserve(bench.client, 1000):
        lease = keeper.open(job.id, job.attempt, asked=30)
        lease.end_at(30, 30, own=True)
        keeper.start_beats(lease, 0)
    await trio.sleep(10.1)
    assert len(bench.calls.of("Extend")) >= 1000
    per_half_second = Counter(int(at * 2) for at in bench.calls.times("Extend"))
    assert max(per_half_second.values()) < 2 * 1000 / 20
    assert len(keeper) == 1000
    assert keeper.beats.sent == len(bench.calls.of("Extend"))
    assert all(job.extends for job in bench.jobs().leased)


async def test_the_servers_time_is_asked_for_again_while_leases_are_held(bench: Bench) -> None:
    await bench.put("t")
    [job] = await reserve(bench.client, 1)
    asked = len(bench.calls.of("GetServerInfo"))
    async with bench.client.hold(job):
        await trio.sleep(300)
    assert 4 <= len(bench.calls.of("GetServerInfo")) - asked <= 6


@asynccontextmanager
async def fragile() -> AsyncIterator[tuple[FragileServer, Recorder, FaultProxy, SeppClient]]:
    """A server whose clock can be set, its jobs, the way to it, and a client."""
    recorder = Recorder()
    async with (
        open_fragile_server(recorder=recorder) as server,
        open_fault_proxy(server.connect) as proxy,
        open_client(proxy.connect) as client,
    ):
        yield server, recorder, proxy, client


@pytest.mark.parametrize("jump", [-3600.0, 12.0, -12.0])
async def test_after_the_servers_clock_was_set_beats_and_deadline_go_on_as_before(
    jump: float,
) -> None:
    async with fragile() as (server, recorder, proxy, client):
        await client.enqueue(EnqueueRequest("emails", "t"))
        [job] = await reserve(client, 1)
        async with client.hold(job) as lease:
            await trio.sleep(5)
            await server.jump_clock(jump)
            proxy.inject(Fail("GetServerInfo"))
            for second in range(100):
                await trio.sleep(1)
                [held] = recorder.jobs().leased
                if second > 5:  # the first beat after it has brought the new time
                    truth = (held.lease_deadline or 0) - trio.current_time()
                    assert truth - 0.1 < lease.remaining() <= truth + 0.001
    beats = [event.at for event in recorder.jobs()[0].extends]
    assert all(3 < later - earlier < 10.2 for earlier, later in pairwise(beats[1:]))


async def test_a_servers_clock_that_was_set_beyond_the_lease_has_ended_it() -> None:
    async with fragile() as (server, recorder, _, client):
        await client.enqueue(EnqueueRequest("emails", "t"))
        [job] = await reserve(client, 1)
        with pytest.raises(LeaseLostError):  # noqa: PT012
            async with client.hold(job):
                await trio.sleep(5)
                await server.jump_clock(3600)
                await trio.sleep_forever()
        assert trio.current_time() == pytest.approx(10, abs=0.1)
        assert recorder.jobs().expired


async def test_a_queue_that_grants_less_is_no_reason_to_ask_again_and_again() -> None:
    calls = CallLog()
    config = BrokerConfig(limits=LimitsConfig(max_lease_duration_ms=7500))
    async with (
        open_recording_broker(config=config) as broker,
        open_fault_proxy(broker, observer=calls) as proxy,
        open_client(proxy.connect) as client,
    ):
        await client.enqueue(EnqueueRequest("emails", "t"))
        [job] = await reserve(client, 1)
        assert job.lease_deadline is not None
        async with client.hold(job) as lease:
            await trio.sleep(50)
            assert lease.remaining() <= 7.5
    assert len(calls.of("GetServerInfo")) <= 4
    assert all(2.3 < later - earlier < 2.7 for earlier, later in pairwise(calls.times("Extend")))


async def test_failed_beats_are_logged_once_a_second_at_most(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.put(*["t"] * 50)
    bench.inject(Fail("Extend", status=Status.UNAVAILABLE, times=500))

    async def hold(job: Job) -> None:
        async with bench.client.hold(job):
            await trio.sleep(12)

    async with trio.open_nursery() as nursery:
        for job in await reserve(bench.client, 50):
            nursery.start_soon(hold, job)
    lines = [r.getMessage() for r in caplog.records if r.name == "sepp_trio.lease"]
    assert 5 <= len(lines) <= 13
    assert "its lease could not be extended" in lines[0]
    assert len(bench.client._keeper) == 0


@pytest.mark.parametrize("acked", [False, True])
async def test_a_beat_without_an_answer_is_given_up_at_the_end_of_the_lease(
    bench: Bench, caplog: pytest.LogCaptureFixture, acked: bool
) -> None:
    client = bench.client
    await bench.put("t")
    [job] = await reserve(client, 1)
    bench.inject(Delay("Extend", request=100))
    with pytest.raises(LeaseLostError) if not acked else nullcontext():
        async with client.hold(job) as lease:
            if acked:
                await trio.sleep(15)  # the beat is on its way
                await lease.ack()
            else:
                with trio.CancelScope(shield=True):
                    await trio.sleep(29.5)
                    assert client._channel.statistics().calls_open == 1
                    await trio.sleep(1)
                    assert client._channel.statistics().calls_open == 0
    await trio.sleep(31)
    assert client._channel.statistics().calls_open == 0
    assert client._keeper.beats.sent == 1
    assert client._keeper.beats.failed == (0 if acked else 1)
    lines = [r.getMessage() for r in caplog.records if r.name == "sepp_trio.lease"]
    assert [line.endswith("no answer until its end") for line in lines] == [True] * (not acked)


async def test_beats_that_end_while_one_is_on_its_way_end_with_it(bench: Bench) -> None:
    keeper = bench.client._keeper
    await bench.put("t")
    [job] = await reserve(bench.client, 1)
    bench.inject(Delay("Extend", request=5))
    lease = keeper.open(job.id, job.attempt, asked=30)
    lease.end_at(30, 30, own=True)
    keeper.start_beats(lease, 0)
    await trio.sleep(12)
    lease.end_beats()
    await trio.sleep(10)
    assert 40 < lease.end < 46
    await trio.sleep(60)
    assert keeper.beats.sent == 1
    assert len(bench.calls.of("Extend")) == 1
    assert bench.client._channel.statistics().calls_open == 0


@pytest.mark.parametrize("late", [step / 50 for step in range(1, 16)])
async def test_a_beat_that_could_not_leave_before_the_leases_end_never_leaves(
    bench: Bench, late: float
) -> None:
    await trio.sleep(0.1)  # so that the wheel has no bucket at the end
    await bench.put("t")
    [job] = await reserve(bench.client, 1)
    end = bench.job(job.id).lease_deadline
    assert end is not None
    bench.inject(BlackHole(5, end + late - 5 - trio.current_time()), DropConnection(6))
    with pytest.raises(LeaseLostError):
        async with bench.client.hold(job):
            await trio.sleep(100)
    await trio.sleep(60)
    await bench.client.get_server_info()  # the way is free again
    assert [at for at in bench.calls.times("Extend") if at >= end] == []
