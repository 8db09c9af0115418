"""GetServerInfo, draining dead letters, deadlines, headers, statistics."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from grpclib.const import Status
from trio.testing import MockClock

from sepp_trio import errors, wire
from sepp_trio._version import __version__
from sepp_trio.client import SeppClient
from sepp_trio.retry import RetryPolicy
from sepp_trio.types import (
    DeadLetterCause,
    DeadLetterRecord,
    EnqueueRequest,
    RawDeadLetter,
    ReserveOptions,
)
from sepp_trio.wire import records
from tests.client.fake import (
    JOB_ID,
    FakeServer,
    info_record,
    job_record,
    never,
    reserved,
    server_time,
    stored,
)
from tests.client.test_leases import JOB


def letter(**members: Any) -> bytes:
    job = job_record(**members)
    return wire.encode(records.DeadLetterRecord(job, 2, server_time(), 3, "disk full"))


async def test_the_server_describes_itself(server: FakeServer, client: SeppClient) -> None:
    info = await client.get_server_info()
    assert info.server_version == "0.1.1"
    assert info.max_lease_duration == 300.0
    assert info.server_time.tzinfo is not None


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"server_version": ""}, "server_version"),
        ({"server_time": None}, "server_time"),
        ({"server_time": (-1, 0)}, "server_time"),
    ],
)
async def test_a_description_without_the_main_things_is_malformed(
    server: FakeServer, client: SeppClient, members: dict[str, Any], words: str
) -> None:
    server.script("GetServerInfo", info_record(**members))
    with pytest.raises(errors.MalformedServerInfoError, match=words):
        await client.get_server_info()


async def test_drained_records_are_read(server: FakeServer, client: SeppClient) -> None:
    server.script("DrainDeadLetters", records.DrainDeadLettersResponse([letter()]))
    [record] = await client.drain_dead_letters("emails", 10)
    assert isinstance(record, DeadLetterRecord)
    assert (record.job_id, record.cause) == (JOB_ID, DeadLetterCause.REJECTED)
    assert record.last_reason == "disk full"
    assert server.requests("DrainDeadLetters") == [records.DrainDeadLettersRequest("emails", 10)]


async def test_a_drain_asks_for_one_of_any_queue_by_default(
    server: FakeServer, client: SeppClient
) -> None:
    server.script("DrainDeadLetters", records.DrainDeadLettersResponse())
    assert await client.drain_dead_letters() == []
    assert server.requests("DrainDeadLetters") == [records.DrainDeadLettersRequest(None, 1)]


async def test_a_record_that_cannot_be_read_is_never_dropped(
    server: FakeServer, client: SeppClient
) -> None:
    bad = [letter(id=""), letter(priority=12), b"\xff\xff"]
    server.script("DrainDeadLetters", records.DrainDeadLettersResponse([*bad, letter()]))
    drained = await client.drain_dead_letters(max_records=4)
    raw = [record for record in drained if isinstance(record, RawDeadLetter)]
    assert [record.data for record in raw] == bad
    assert all(record.error for record in raw)
    assert isinstance(drained[3], DeadLetterRecord)


async def test_a_cause_from_the_future_is_unspecified(
    server: FakeServer, client: SeppClient
) -> None:
    record = wire.encode(records.DeadLetterRecord(job_record(), 99, server_time(), 3))
    server.script("DrainDeadLetters", records.DrainDeadLettersResponse([record]))
    [drained] = await client.drain_dead_letters()
    assert isinstance(drained, DeadLetterRecord)
    assert drained.cause is DeadLetterCause.UNSPECIFIED


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((None, 0), ValueError, "max_records must be between 1 and 4294967295, not 0"),
        ((None, -1), ValueError, "max_records must be between 1"),
        ((None, 2**32), ValueError, "max_records must be between 1"),
        ((None, True), TypeError, "max_records must be an int, not bool"),
        (("", 1), ValueError, "queue must not be empty"),
        (("a/b", 1), ValueError, "queue must not be"),
        ((5, 1), TypeError, "queue must be a string, not int"),
    ],
)
async def test_a_wrong_drain_is_refused_unsent(
    server: FakeServer, client: SeppClient, arguments: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        await client.drain_dead_letters(*arguments)
    assert server.calls == []


async def test_every_call_but_reserve_has_the_rpc_timeout(
    autojump_clock: MockClock, server: FakeServer
) -> None:
    for rpc in ("EnqueueBatch", "EnqueueAtomic", "Ack", "Nack", "Extend", "DrainDeadLetters"):
        server.script(rpc, never)
    server.script("GetServerInfo", never)
    request = EnqueueRequest("q", "t")
    async with server.client(rpc_timeout=7) as client:
        calls: list[Any] = [
            lambda: client.enqueue(request),
            lambda: client.enqueue_atomic([request]),
            lambda: client.ack(JOB),
            lambda: client.nack(JOB),
            lambda: client.extend(JOB, 1),
            lambda: client.drain_dead_letters(),
            lambda: client.get_server_info(),
        ]
        for call in calls:
            started = trio.current_time()
            with pytest.raises(errors.TransportError, match="deadline"):
                await call()
            assert trio.current_time() - started == pytest.approx(7, abs=0.2)
            assert server.calls[-1].timeout == "7000m"


async def test_the_rpc_timeout_is_half_a_minute_by_default(
    autojump_clock: MockClock, server: FakeServer, client: SeppClient
) -> None:
    await client.get_server_info()
    assert server.calls[-1].timeout == "30000m"


async def test_calls_carry_key_and_user_agent(server: FakeServer) -> None:
    server.script("EnqueueBatch", stored("an-id"))
    async with server.client(api_key="s3cret") as client:
        await client.enqueue(EnqueueRequest("q", "t"))
    headers = server.calls[-1].headers
    assert headers["authorization"] == "Bearer s3cret"
    assert headers["user-agent"] == f"sepp-trio/{__version__}"


async def test_without_a_key_none_is_sent(server: FakeServer, client: SeppClient) -> None:
    await client.get_server_info()
    assert "authorization" not in server.calls[-1].headers


async def test_an_answer_over_the_receive_limit_is_an_overload(server: FakeServer) -> None:
    job = job_record(payload=records.Payload(b"x" * 5000, "raw"))
    server.script("Reserve", reserved(*[job] * 10))
    server.script("DrainDeadLetters", records.DrainDeadLettersResponse([b"x" * 50_000]))
    async with server.client(
        max_receive_message_bytes=20_000, retry_policy=RetryPolicy(max_attempts=5)
    ) as client:
        with pytest.raises(errors.OverloadedError, match="larger than the receive limit"):
            await client.reserve(ReserveOptions(["q"], 30, 0))
        with pytest.raises(errors.OverloadedError, match="larger than the receive limit"):
            await client.drain_dead_letters()
        assert (await client.get_server_info()).server_version
    assert len(server.requests("Reserve")) == 1


async def test_a_huge_answer_comes_through(server: FakeServer, client: SeppClient) -> None:
    job = job_record(payload=records.Payload(b"x" * 2**20, "raw"))
    server.script("Reserve", reserved(*[job] * 40))
    jobs = await client.reserve(ReserveOptions(["q"], 30, 0, max_jobs=40))
    assert [len(job.payload.data) for job in jobs if job.payload] == [2**20] * 40


async def test_statistics_tell_of_the_connection(
    autojump_clock: MockClock, server: FakeServer, client: SeppClient
) -> None:
    server.script("Reserve", never)
    assert client.statistics().state == "ready"
    with trio.move_on_after(1):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.reserve, ReserveOptions(["q"], 30))
            await trio.testing.wait_all_tasks_blocked()
            assert client.statistics().calls_open >= 1
            nursery.cancel_scope.cancel()
    assert client.statistics().bytes_sent > 0
    assert client.statistics().connections == 1


async def test_a_lost_connection_is_a_transport_error_and_is_dialled_anew(
    server: FakeServer, client: SeppClient
) -> None:
    server.script("Ack", never)

    async def ack() -> None:
        with pytest.raises(errors.TransportError, match="connection was lost"):
            await client.ack(JOB)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ack)
        await trio.testing.wait_all_tasks_blocked()
        await server.connections[0].aclose()
    assert (await client.get_server_info()).server_version
    assert server.dials == 2


async def test_what_the_server_does_not_have_is_an_unexpected_status(
    server: FakeServer, client: SeppClient
) -> None:
    server.script("Ack", Status.UNIMPLEMENTED)
    with pytest.raises(errors.UnexpectedStatusError) as caught:
        await client.ack(JOB)
    assert caught.value.code == "UNIMPLEMENTED"
