"""Repeats: which failures of which calls, how often, after which pauses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from grpclib.const import Status
from trio.testing import MockClock

from sepp_trio import errors
from sepp_trio.client import SeppClient
from sepp_trio.client._retry import repeat_idempotent, repeat_unambiguous
from sepp_trio.retry import RetryPolicy
from sepp_trio.transport import CallError, ChannelClosed
from sepp_trio.types import EnqueueRequest, ReserveOptions
from sepp_trio.wire import records
from tests.client.fake import JOB_ID, FakeServer, info_record, never, server_time, stored
from tests.client.test_leases import JOB

RETRYABLE = [
    Status.UNAVAILABLE,
    Status.DEADLINE_EXCEEDED,
    Status.ABORTED,
    Status.RESOURCE_EXHAUSTED,
]
OTHERS = [
    Status.CANCELLED,
    Status.UNAUTHENTICATED,
    Status.PERMISSION_DENIED,
    Status.INVALID_ARGUMENT,
    Status.INTERNAL,
    Status.DATA_LOSS,
    Status.UNKNOWN,
    Status.OUT_OF_RANGE,
    Status.UNIMPLEMENTED,
]
FIVE = RetryPolicy(max_attempts=5)
KEYED = EnqueueRequest("q", "t", idempotency_key="k")
KEYLESS = EnqueueRequest("q", "t")

Call = Callable[[SeppClient], Awaitable[Any]]

REPEATABLE: dict[str, tuple[str, Any, Call]] = {
    "enqueue": ("EnqueueBatch", stored("a"), lambda client: client.enqueue(KEYED)),
    "enqueue_batch": ("EnqueueBatch", stored("a"), lambda client: client.enqueue_batch([KEYED])),
    "enqueue_atomic": (
        "EnqueueAtomic",
        records.EnqueueAtomicResponse(
            success=records.EnqueueAtomicSuccess([records.EnqueueResponse("a")])
        ),
        lambda client: client.enqueue_atomic([KEYED]),
    ),
    "ack": ("Ack", records.AckResponse(JOB_ID), lambda client: client.ack(JOB)),
    "nack": ("Nack", records.NackResponse(JOB_ID), lambda client: client.nack(JOB)),
    "extend": ("Extend", records.ExtendResponse(JOB_ID, (60, 0)), lambda c: c.extend(JOB, 60)),
    "get_server_info": ("GetServerInfo", None, lambda client: client.get_server_info()),
}


@pytest.mark.parametrize("name", REPEATABLE)
@pytest.mark.parametrize("status", RETRYABLE)
async def test_a_passing_failure_is_repeated(
    autojump_clock: MockClock, server: FakeServer, name: str, status: Status
) -> None:
    rpc, answer, call = REPEATABLE[name]
    server.script(rpc, status, status, answer or info_record())
    async with server.client(retry_policy=FIVE) as client:
        await call(client)
    assert len(server.requests(rpc)) == 3


@pytest.mark.parametrize("name", REPEATABLE)
@pytest.mark.parametrize("status", OTHERS)
async def test_any_other_failure_is_not(
    autojump_clock: MockClock, server: FakeServer, name: str, status: Status
) -> None:
    rpc, _, call = REPEATABLE[name]
    server.script(rpc, status)
    async with server.client(retry_policy=FIVE) as client:
        with pytest.raises(errors.ClientError):
            await call(client)
    assert len(server.requests(rpc)) == 1


@pytest.mark.parametrize("name", REPEATABLE)
async def test_nothing_is_repeated_by_default(server: FakeServer, name: str) -> None:
    rpc, _, call = REPEATABLE[name]
    server.script(rpc, Status.UNAVAILABLE)
    async with server.client() as client:
        with pytest.raises(errors.TransportError):
            await call(client)
    assert len(server.requests(rpc)) == 1


async def test_the_last_failure_is_raised(autojump_clock: MockClock, server: FakeServer) -> None:
    server.script("Ack", Status.ABORTED, Status.RESOURCE_EXHAUSTED, Status.UNAVAILABLE)
    async with server.client(retry_policy=RetryPolicy(max_attempts=3)) as client:
        with pytest.raises(errors.TransportError, match="scripted UNAVAILABLE"):
            await client.ack(JOB)
    assert len(server.requests("Ack")) == 3


@pytest.mark.parametrize("status", RETRYABLE)
async def test_what_takes_from_the_server_is_never_repeated(
    autojump_clock: MockClock, server: FakeServer, status: Status
) -> None:
    server.script("Reserve", status)
    server.script("DrainDeadLetters", status)
    async with server.client(retry_policy=FIVE) as client:
        with pytest.raises(errors.ClientError):
            await client.reserve(ReserveOptions(["q"], 30))
        with pytest.raises(errors.ClientError):
            await client.drain_dead_letters()
    assert len(server.requests("Reserve")) == len(server.requests("DrainDeadLetters")) == 1


@pytest.mark.parametrize("batch", [[KEYLESS], [KEYED, KEYLESS], [KEYED, KEYED, KEYLESS]])
@pytest.mark.parametrize(
    ("status", "calls"),
    [
        (Status.UNAVAILABLE, 5),
        (Status.RESOURCE_EXHAUSTED, 5),
        (Status.DEADLINE_EXCEEDED, 1),
        (Status.ABORTED, 1),
    ],
)
async def test_a_batch_with_a_keyless_job_is_repeated_only_without_doubt(
    autojump_clock: MockClock,
    server: FakeServer,
    batch: list[EnqueueRequest],
    status: Status,
    calls: int,
) -> None:
    server.script("EnqueueBatch", status)
    server.script("EnqueueAtomic", status)
    async with server.client(retry_policy=FIVE) as client:
        for rpc in (client.enqueue_batch, client.enqueue_atomic):
            with pytest.raises(errors.ClientError):
                await rpc(batch)
        if len(batch) == 1:
            with pytest.raises(errors.ClientError):
                await client.enqueue(batch[0])
    assert len(server.requests("EnqueueAtomic")) == calls
    assert len(server.requests("EnqueueBatch")) == calls * (2 if len(batch) == 1 else 1)


async def commit_and_vanish(server: FakeServer, _: Any) -> Any:
    await server.connections[-1].aclose()
    await trio.sleep_forever()


@pytest.mark.parametrize(("request_", "calls"), [(KEYLESS, 1), (KEYED, 2)])
async def test_a_connection_lost_after_the_request_proves_nothing(
    autojump_clock: MockClock, server: FakeServer, request_: EnqueueRequest, calls: int
) -> None:
    server.script("EnqueueBatch", lambda seen: commit_and_vanish(server, seen), stored("a"))
    async with server.client(retry_policy=FIVE) as client:
        if calls == 1:
            with pytest.raises(errors.TransportError):
                await client.enqueue(request_)
        else:
            assert (await client.enqueue(request_)).job_id == "a"
    assert len(server.requests("EnqueueBatch")) == calls


@pytest.mark.parametrize(("request_", "calls"), [(KEYLESS, 1), (KEYED, 2)])
async def test_a_deadline_proves_nothing(
    autojump_clock: MockClock, server: FakeServer, request_: EnqueueRequest, calls: int
) -> None:
    server.script("EnqueueBatch", never)
    policy = RetryPolicy(max_attempts=2)
    async with server.client(retry_policy=policy, rpc_timeout=3) as client:
        with pytest.raises(errors.TransportError, match="deadline"):
            await client.enqueue(request_)
    assert len(server.requests("EnqueueBatch")) == calls


async def test_a_call_that_cannot_have_arrived_is_repeated_without_a_key(
    autojump_clock: MockClock, server: FakeServer
) -> None:
    server.script("EnqueueBatch", stored("a"))
    async with server.client() as client:
        await server.connections[0].aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert (await client.enqueue(KEYLESS)).job_id == "a"
    assert len(server.requests("EnqueueBatch")) == 1


def test_what_may_be_repeated_by_its_origin() -> None:
    too_large = CallError(Status.RESOURCE_EXHAUSTED, "", origin="local")
    assert not repeat_idempotent(too_large)
    assert not repeat_unambiguous(too_large)
    lost = CallError(Status.UNAVAILABLE, "", origin="connection")
    assert repeat_idempotent(lost)
    assert not repeat_unambiguous(lost)
    for arrived in (False, True):
        closed = ChannelClosed(unprocessed=not arrived)
        assert not repeat_idempotent(closed)
        assert not repeat_unambiguous(closed)
    assert repeat_idempotent(CallError(Status.DEADLINE_EXCEEDED, "", origin="local"))
    refused = CallError(Status.UNAVAILABLE, "", origin="connection", unprocessed=True)
    assert repeat_unambiguous(refused)


async def test_pauses_grow_on_trios_clock(autojump_clock: MockClock, server: FakeServer) -> None:
    server.script("Ack", Status.UNAVAILABLE)
    policy = RetryPolicy(4, initial_backoff=1, max_backoff=3, multiplier=2, jitter=False)
    async with server.client(retry_policy=policy) as client:
        with pytest.raises(errors.TransportError):
            await client.ack(JOB)
    times = [seen.at for seen in server.calls]
    assert times == [0, 1, 3, 6]


async def test_a_cancel_ends_the_pause(autojump_clock: MockClock, server: FakeServer) -> None:
    server.script("Ack", Status.UNAVAILABLE)
    policy = RetryPolicy(5, initial_backoff=100, max_backoff=100, jitter=False)
    async with server.client(retry_policy=policy) as client:
        with trio.move_on_after(5) as scope:
            await client.ack(JOB)
    assert scope.cancelled_caught
    assert trio.current_time() == 5
    assert len(server.requests("Ack")) == 1


async def test_each_attempt_has_the_whole_timeout(
    autojump_clock: MockClock, server: FakeServer
) -> None:
    async def late(request: Any) -> Any:
        await trio.sleep(8)
        return records.ExtendResponse(request.job_id, server_time(60))

    server.script("Extend", never, late)
    async with server.client(retry_policy=FIVE, rpc_timeout=10) as client:
        await client.extend(JOB, 60)
    assert len(server.calls) == 2
    for seen in server.calls:
        assert seen.timeout is not None
        assert 10_000 <= int(seen.timeout.removesuffix("m")) <= 10_001
