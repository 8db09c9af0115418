"""Faults at a moment: connections, leases, the server and its clock."""

from __future__ import annotations

import pytest
import trio

from sepp_trio import (
    BrokerConfig,
    EnqueueRequest,
    JobNotFoundError,
    LimitsConfig,
    ReserveOptions,
    TransportError,
)
from sepp_trio.testing import (
    BlackHole,
    DropConnection,
    FaultPlan,
    JumpServerClock,
    LoseLease,
    RestartServer,
    open_fault_proxy,
    open_fragile_server,
)
from tests.testing.helpers import faults


async def test_a_dropped_connection_fails_what_is_open_and_the_next_call_dials_anew() -> None:
    async with faults(DropConnection(2.0)) as world:
        with pytest.raises(TransportError):
            await world.client.reserve(ReserveOptions(["q"], 30, wait_timeout=10))
        assert trio.current_time() == 2
        await world.client.get_server_info()
        assert world.client.statistics().connections == 2
        # The server has noticed as well: the reserve does not wait on.
        await world.other.enqueue(EnqueueRequest("q", "t"))
        assert len(await world.again()) == 1


async def test_in_a_black_hole_bytes_wait_and_nothing_is_closed() -> None:
    async with faults(BlackHole(1.0, 3.0)) as world:
        await trio.sleep(2)
        await world.client.get_server_info()
        assert trio.current_time() == 4
        assert world.client.statistics().connections == 1


async def test_a_long_black_hole_is_noticed_and_new_connections_hang_in_it() -> None:
    async with faults(BlackHole(1.0, 60.0)) as world:
        await trio.sleep(2)
        with pytest.raises(TransportError):
            await world.client.get_server_info()
        assert trio.current_time() < 20
        await trio.sleep_until(62)
        await world.client.get_server_info()


async def test_black_holes_may_overlap() -> None:
    async with faults(BlackHole(1.0, 3.0), BlackHole(2.0, 1.0)) as world:
        await trio.sleep(1.5)
        await world.client.get_server_info()
        assert trio.current_time() == 4


@pytest.mark.parametrize("by", ["expiry", "ack"])
async def test_a_lease_is_lost_behind_its_holder(by: str) -> None:
    async with faults(LoseLease(1.0, by=by)) as world:  # type: ignore[arg-type]
        job = await world.job()
        await trio.sleep(1.5)
        with pytest.raises(JobNotFoundError):
            await world.client.ack(job)
        again = await world.again()
        assert [each.attempt for each in again] == ([] if by == "ack" else [2])
        [happening] = world.proxy.happened
        assert job.id in happening.effect


async def test_without_a_lease_there_is_none_to_lose() -> None:
    async with faults(LoseLease(1.0), LoseLease(2.0)) as world:
        await trio.sleep(1.5)
        job = await world.job()
        await world.client.ack(job)
        await trio.sleep(1)
        effects = [item.effect for item in world.proxy.happened]
        assert effects == ["no lease was held", "no lease was held"]


async def test_a_lease_cannot_be_stolen_while_the_server_is_down() -> None:
    async with faults(RestartServer(0.5, down=2.0), LoseLease(1.0)) as world:
        job = await world.job()
        await trio.sleep(3)
        await world.client.ack(job)
        assert "the server is down" in world.proxy.happened[-1].effect


@pytest.mark.parametrize("drain", [False, True])
async def test_a_restarted_server_has_kept_its_jobs_and_leases(drain: bool) -> None:
    async with faults(RestartServer(1.0, down=2.0, drain=drain)) as world:
        job = await world.job()
        await world.other.enqueue(EnqueueRequest("q", "t"))
        await trio.sleep(1.5)
        with pytest.raises(TransportError):
            await world.client.get_server_info()
        await trio.sleep(2)
        await world.client.ack(job)
        assert len(await world.again()) == 1


async def test_a_drained_server_answers_the_reserves_that_wait() -> None:
    async with faults(RestartServer(1.0, drain=True)) as world:
        assert await world.client.reserve(ReserveOptions(["q"], 30, wait_timeout=10)) == []
        assert trio.current_time() == 1


async def test_a_lease_that_ends_while_the_server_is_down_is_over_when_it_is_back() -> None:
    async with faults(RestartServer(1.0, down=10.0)) as world:
        job = await world.job(lease=3.0)
        await trio.sleep(12)
        [again] = await world.again()
        assert (again.id, again.attempt) == (job.id, 2)


async def test_a_second_restart_while_the_server_is_down_changes_nothing() -> None:
    async with faults(RestartServer(1.0, down=3.0), RestartServer(2.0, down=9.0)) as world:
        await trio.sleep(4.5)
        await world.client.get_server_info()


async def test_a_server_may_come_back_with_other_settings() -> None:
    async with faults() as world:
        small = BrokerConfig(limits=LimitsConfig(max_payload_bytes=1000))
        await world.server.restart(1.0, config=small)
        assert (await world.client.get_server_info()).max_payload_bytes == 1000
        await world.server.restart(1.0)
        assert (await world.client.get_server_info()).max_payload_bytes == 1000


async def test_a_jump_ahead_ends_leases_at_once_and_a_jump_back_prolongs_them() -> None:
    async with faults(JumpServerClock(1.0, 3600.0), JumpServerClock(2.0, -100.0)) as world:
        job = await world.job(lease=30.0)
        await trio.sleep(1.5)
        [again] = await world.again()
        assert (again.id, again.attempt) == (job.id, 2)
        await trio.sleep_until(100)
        assert await world.again() == []
        await trio.sleep_until(140)
        assert len(await world.again()) == 1


async def test_a_plan_for_the_server_needs_one() -> None:
    async with open_fragile_server() as server:
        with pytest.raises(ValueError, match=r"server must be given for RestartServer\(1.0\)"):
            async with open_fault_proxy(server.connect, FaultPlan((RestartServer(1.0),))):
                """Not entered."""
