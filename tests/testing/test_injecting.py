"""Faults that a test adds while it runs, for one call or for many, and the log of calls."""

from __future__ import annotations

import pytest
import trio
from grpclib.const import Status

from sepp_trio import (
    EnqueueRequest,
    InvalidRequestError,
    MalformedResponseError,
    OverloadedError,
    ReserveOptions,
    TransportError,
    open_client,
    wire,
)
from sepp_trio.testing import (
    Answer,
    BlackHole,
    CallLog,
    Delay,
    DropConnection,
    Fail,
    FaultPlan,
    LoseReply,
    RestartServer,
    open_fault_proxy,
    open_recording_broker,
)
from sepp_trio.wire import decoder_of, records
from tests.testing.helpers import World, faults

TAKE = ReserveOptions(["q"], 30, wait_timeout=0)


async def results(world: World, count: int) -> list[str]:
    """What becomes of ``count`` questions for the server's time: ``"ok"`` or the error."""
    found = []
    for _ in range(count):
        try:
            await world.client.get_server_info()
        except Exception as error:
            found.append(type(error).__name__)
        else:
            found.append("ok")
    return found


async def test_calls_are_counted_from_the_injection() -> None:
    async with faults() as world:
        assert await results(world, 2) == ["ok", "ok"]
        world.proxy.inject(
            Fail("GetServerInfo", 2, Status.RESOURCE_EXHAUSTED),
            Fail("GetServerInfo", 3, Status.INVALID_ARGUMENT),
        )
        assert await results(world, 4) == ["ok", "OverloadedError", "InvalidRequestError", "ok"]


async def test_a_fault_may_be_for_many_calls_in_a_row() -> None:
    async with faults(Fail("GetServerInfo", 2, Status.RESOURCE_EXHAUSTED, times=3)) as world:
        bad = ["OverloadedError"] * 3
        assert await results(world, 6) == ["ok", *bad, "ok", "ok"]
        assert len(world.proxy.happened) == 3


async def test_a_fault_may_be_for_all_calls_until_the_proxy_relents() -> None:
    async with faults(Fail("GetServerInfo", status=Status.RESOURCE_EXHAUSTED, times=None)) as world:
        assert set(await results(world, 50)) == {"OverloadedError"}
        world.proxy.relent()
        assert await results(world, 1) == ["ok"]


async def test_of_two_faults_for_one_call_the_first_counts_and_the_newest_before_all() -> None:
    plan = (
        Fail("Ack", 1, Status.RESOURCE_EXHAUSTED, times=2),
        Fail("Ack", 2, Status.INVALID_ARGUMENT, times=2),
    )
    async with faults(*plan) as world:
        job = await world.job()
        with pytest.raises(OverloadedError):
            await world.client.ack(job)
        with pytest.raises(OverloadedError):
            await world.client.ack(job)
        with pytest.raises(InvalidRequestError):
            await world.client.ack(job)
        world.proxy.inject(Fail("Ack", 1, Status.RESOURCE_EXHAUSTED))
        with pytest.raises(OverloadedError):
            await world.client.ack(job)
        await world.client.ack(job)


async def test_a_moment_counts_from_the_injection() -> None:
    async with faults() as world:
        await trio.sleep(10)
        world.proxy.inject(BlackHole(2.0, 3.0))
        await trio.sleep(2.5)
        await world.client.get_server_info()
        assert trio.current_time() == 15


async def test_a_drop_at_once_comes_at_the_next_checkpoint() -> None:
    async with faults() as world:
        world.proxy.inject(DropConnection(0))
        await trio.sleep(0.001)
        await world.client.get_server_info()
        assert world.client.statistics().connections == 2


async def test_faults_of_a_server_need_a_server() -> None:
    async with open_recording_broker() as broker, open_fault_proxy(broker) as proxy:
        with pytest.raises(ValueError, match=r"server must be given for RestartServer\(1.0\)"):
            proxy.inject(RestartServer(1.0))


async def test_an_answer_of_ones_own_is_all_that_the_client_gets() -> None:
    """Also one of many frames."""
    async with faults() as world:
        mine = await world.job()
        [raw] = (await reserve_raw(world)).jobs
        record = decoder_of(records.Job)(raw)
        record.payload = records.Payload(bytes(range(256)) * 300, "bin")
        answer = wire.encode(records.ReserveResponse([wire.encode(record)]))
        world.proxy.inject(Answer("Reserve", message=answer))
        [job] = await world.client.reserve(TAKE)
        assert job.payload is not None
        assert job.payload.data == bytes(range(256)) * 300
        await world.client.ack(job)  # the lease is a real one
        await world.client.ack(mine)
        world.proxy.inject(Answer("Ack", message=b"\xff\xff"))
        last = await world.job()
        with pytest.raises(MalformedResponseError):
            await world.client.ack(last)
        await world.client.ack(last)
        assert world.log.of("Reserve") == ["asked", "answered"] * 3


async def reserve_raw(world: World) -> records.ReserveResponse:
    """Reserve a new job past the proxy; the server's answer."""
    await world.other.enqueue(EnqueueRequest("q", "t"))
    response = await world.other._channel.unary(
        world.other._methods.reserve,
        records.ReserveRequest(["q"], (0, 0), (30, 0), "other", 1),
        timeout=5,
    )
    assert isinstance(response, records.ReserveResponse)
    return response


def test_the_log_knows_which_calls_there_are() -> None:
    with pytest.raises(ValueError, match=r"rpc must be one of .*, not 'ack'"):
        CallLog().of("ack")


async def test_the_log_tells_what_was_asked_when_and_how_it_ended() -> None:
    log = CallLog()
    plan = FaultPlan((Delay("Reserve", 2, reply=5.0), LoseReply("Ack", silent=True)))
    async with (
        open_recording_broker() as broker,
        open_fault_proxy(broker, plan, observer=log) as proxy,
        open_client(proxy.connect, rpc_timeout=1) as client,
    ):
        await client.enqueue(EnqueueRequest("q", "t"))
        [job] = await client.reserve(TAKE)
        await trio.sleep(2)
        with trio.move_on_after(1):
            await client.reserve(TAKE)
        assert log.times("Reserve") == (0, 2)
        assert [call.end for call in log.of("Reserve")] == ["answered", "reset"]
        assert [call.status for call in log.of("Reserve")] == [0, 0]
        asked = decoder_of(records.ReserveRequest)(log.of("Reserve")[0].request)
        assert (asked.queues, asked.lease_duration) == (["q"], (30, 0))
        async with trio.open_nursery() as nursery:
            proxy.inject(Delay("Nack", request=0.5))
            nursery.start_soon(client.nack, job)
            await trio.sleep(0.25)
            assert len(log.pending("Nack")) == 1
        assert log.pending("Nack") == ()
        [again] = await client.reserve(TAKE)
        with pytest.raises(TransportError):
            await client.ack(again)
        assert [call.end for call in log.of("Ack")] == ["lost"]
        assert broker.jobs("q").acked
