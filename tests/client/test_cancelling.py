"""A cancel at every checkpoint of every call; the client works afterwards, nothing is left."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import trio
from grpclib.const import Status
from trio.testing import MockClock

from sepp_trio.client import SeppClient
from sepp_trio.retry import RetryPolicy
from sepp_trio.types import EnqueueRequest, ReserveOptions
from sepp_trio.wire import records
from tests.client.fake import JOB_ID, FakeServer, after, info_record, job_record, reserved, stored
from tests.client.test_leases import JOB, Named, extended

REQUEST = EnqueueRequest("q", "t", idempotency_key="k")


async def enqueue_many(client: SeppClient) -> None:
    async for _ in client.enqueue_many([REQUEST] * 3, batch_size=1, in_flight=2):
        pass


@dataclass
class Leased(Named):
    """A job out of a reserve."""

    lease_deadline: float


async def hold(client: SeppClient) -> None:
    leased = Leased(JOB_ID, 2, trio.current_time() + 30)
    async with client.hold(leased) as lease:
        await trio.sleep(1)
        await lease.ack()


CALLS: dict[str, Callable[[SeppClient], Awaitable[Any]]] = {
    "enqueue": lambda client: client.enqueue(REQUEST),
    "enqueue_atomic": lambda client: client.enqueue_atomic([REQUEST]),
    "enqueue_many": enqueue_many,
    "reserve": lambda client: client.reserve(ReserveOptions(["q"], 30)),
    "ack": lambda client: client.ack(JOB),
    "nack": lambda client: client.nack(JOB),
    "extend": lambda client: client.extend(JOB, 30),
    "get_server_info": lambda client: client.get_server_info(),
    "drain_dead_letters": lambda client: client.drain_dead_letters(),
    "hold": hold,
}

ANSWERS: dict[str, Any] = {
    "EnqueueBatch": stored("a"),
    "EnqueueAtomic": records.EnqueueAtomicResponse(
        success=records.EnqueueAtomicSuccess([records.EnqueueResponse("a")])
    ),
    "Reserve": reserved(),
    "Ack": records.AckResponse(JOB_ID),
    "Nack": records.NackResponse(JOB_ID),
    "DrainDeadLetters": records.DrainDeadLettersResponse(),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_cancel_at_any_moment_leaves_a_client_that_works(
    autojump_clock: MockClock, server: FakeServer, name: str
) -> None:
    """Each run is cancelled a tenth of a second later than the one before, across a failed
    attempt, the pause after it, and a second attempt, until one is not cancelled any more."""
    policy = RetryPolicy(2, initial_backoff=0.35, jitter=False)
    async with server.client(retry_policy=policy) as client:
        await client.get_server_info()
        for tenths in range(200):
            slow = {rpc: after(0.35, answer) for rpc, answer in ANSWERS.items()}
            slow["GetServerInfo"] = after(0.35, info_record())
            slow["Extend"] = extended
            for rpc, answer in slow.items():
                takes = rpc in ("Reserve", "DrainDeadLetters")
                script = [answer] if takes else [after(0.25, Status.UNAVAILABLE), answer]
                server.script(rpc, *script)
            with trio.move_on_after(tenths / 10) as scope:
                await CALLS[name](client)
            if not scope.cancelled_caught:
                break
            server.script("GetServerInfo", info_record())
            assert (await client.get_server_info()).server_version
            await trio.testing.wait_all_tasks_blocked()
            assert client.statistics().calls_open <= 6  # what enqueue_many has sent may finish
        else:
            pytest.fail("it never ended")
        assert tenths > 0
        await trio.sleep(60)
        assert client.statistics().calls_open == client.statistics().calls_waiting == 0
    assert server.dials == 1
    assert server.open_calls == 0


@pytest.mark.parametrize("name", [name for name in CALLS if name != "hold"])
async def test_every_call_is_a_checkpoint(server: FakeServer, name: str) -> None:
    for rpc, answer in ANSWERS.items():
        server.script(rpc, answer)
    server.script("Extend", extended)
    async with server.client() as client:
        with trio.testing.assert_checkpoints():
            await CALLS[name](client)
        sent = len(server.calls)
        with trio.CancelScope() as scope:
            scope.cancel()
            await CALLS[name](client)
        assert scope.cancelled_caught
        await trio.testing.wait_all_tasks_blocked()
        assert len(server.calls) == sent


async def test_statistics_is_none(server: FakeServer, client: SeppClient) -> None:
    with trio.testing.assert_no_checkpoints():
        client.statistics()


async def test_a_reserve_that_was_cut_off_leaves_the_others_alone(
    autojump_clock: MockClock, server: FakeServer, client: SeppClient
) -> None:
    server.script("Reserve", after(20, reserved()), after(20, reserved(job_record())))
    results = []

    async def reserve() -> None:
        results.append(await client.reserve(ReserveOptions(["q"], 30)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(reserve)
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(5):
            async with trio.open_nursery() as cut_off:
                cut_off.start_soon(reserve)
                await trio.sleep(4)
                cut_off.cancel_scope.cancel()
    assert results == [[]]
