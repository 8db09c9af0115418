"""Faults of single calls: failed, held up, or answered in vain."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
from grpclib.const import Status

from sepp_trio import (
    EnqueueRequest,
    JobNotFoundError,
    OverloadedError,
    Payload,
    ReserveOptions,
    TransportError,
)
from sepp_trio.testing import Delay, DropConnection, Fail, LoseReply, RestartServer
from sepp_trio.transport import CallError
from tests.testing.helpers import faults


async def test_a_failed_call_never_reaches_the_server() -> None:
    async with faults(Fail("Ack", 2, Status.RESOURCE_EXHAUSTED)) as world:
        await world.client.ack(await world.job())
        job = await world.job()
        with pytest.raises(OverloadedError, match="fault plan"):
            await world.client.ack(job)
        await world.other.ack(job)  # still leased
        assert [str(item.fault) for item in world.proxy.happened] == [
            "Fail('Ack', nth=2, status=Status.RESOURCE_EXHAUSTED)"
        ]


async def test_a_delayed_request_arrives_late_and_holds_up_no_other() -> None:
    async with faults(Delay("EnqueueBatch", request=3.0)) as world:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.client.enqueue, EnqueueRequest("q", "t"))
            await trio.sleep(1)
            await world.client.get_server_info()
            assert trio.current_time() == 1
            await trio.sleep(1.9)
            assert await world.again() == []
        assert trio.current_time() == 3
        assert len(await world.again()) == 1


async def test_a_delayed_reply_arrives_late_though_all_is_done() -> None:
    async with faults(Delay("EnqueueBatch", reply=3.0)) as world:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.client.enqueue, EnqueueRequest("q", "t"))
            await trio.sleep(1)
            assert len(await world.again()) == 1
        assert trio.current_time() == 3


@pytest.mark.parametrize("silent", [False, True])
async def test_a_lost_reply_leaves_the_call_done_and_unanswered(silent: bool) -> None:
    async with faults(LoseReply("Ack", silent=silent)) as world:
        job = await world.job()
        with pytest.raises(TransportError):
            await world.client.ack(job)
        assert trio.current_time() == (5 if silent else 0)  # the client's rpc_timeout
        assert world.log.of("Ack")[:2] == ["asked", "lost"]
        with pytest.raises(JobNotFoundError):
            await world.client.ack(job)
        assert world.client.statistics().connections == (1 if silent else 2)


async def test_a_reply_that_is_held_up_when_its_connection_ends_is_lost() -> None:
    async with faults(Delay("Ack", reply=9.0), DropConnection(2.0)) as world:
        job = await world.job()
        with pytest.raises((TransportError, JobNotFoundError)):
            await world.client.ack(job)
        assert world.log.of("Ack")[:2] == ["asked", "lost"]
        assert trio.current_time() < 3


@pytest.mark.parametrize("fault", [Delay("Ack", request=9.0), Delay("Ack", reply=9.0)])
async def test_a_call_that_its_client_takes_back_while_held_up_is_gone(fault: Delay) -> None:
    async with faults(fault) as world:
        job = await world.job()
        with trio.move_on_after(1):
            await world.client.ack(job)
        await trio.sleep(20)
        assert world.log.of("Ack") == ["asked", "reset"]
        if fault.request:
            await world.client.ack(job)  # the first one never arrived
        else:
            with pytest.raises(JobNotFoundError):
                await world.client.ack(job)


@pytest.mark.parametrize(
    "fault", [Fail("EnqueueBatch"), Delay("EnqueueBatch", request=60.0), Delay("Reserve", reply=60)]
)
async def test_what_is_thrown_away_costs_no_flow_control_credit(fault: Fail | Delay) -> None:
    big = EnqueueRequest("q", "t", Payload(b"x" * 1_000_000, "bin"))
    plan = [type(fault)(fault.rpc, n, *_rest(fault)) for n in range(1, 25)]
    async with faults(*plan) as world:
        for _ in range(24):
            with trio.move_on_after(1):
                if fault.rpc == "Reserve":
                    await world.other.enqueue(big)
                    await world.client.reserve(ReserveOptions(["q"], 60, wait_timeout=0.2))
                else:
                    with suppress(TransportError):
                        await world.client.enqueue(big)
        with trio.fail_after(5):
            await world.client.enqueue(big)
            [_] = await world.client.reserve(ReserveOptions(["q"], 60, wait_timeout=1))


def _rest(fault: Fail | Delay) -> tuple[object, ...]:
    return () if isinstance(fault, Fail) else (fault.request, fault.reply)


async def test_a_request_that_is_held_up_when_the_server_says_goodbye_was_never_processed() -> None:
    plan = (Delay("EnqueueBatch", request=8.0), RestartServer(1.0, down=1.0, drain=True))
    async with faults(*plan) as world:
        started = trio.current_time()
        with pytest.raises(TransportError, match="could not connect") as caught:
            await world.client.enqueue(EnqueueRequest("q", "t"))
        assert trio.current_time() - started < 8
        # It went to the next connection, unseen, and that could not be made.
        assert isinstance(caught.value.__cause__, CallError)
        assert caught.value.__cause__.unprocessed
        await trio.sleep(10)
        assert await world.again() == []
