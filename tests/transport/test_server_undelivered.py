"""``on_undelivered``: called once for every answer that never left, never for one that did."""

from __future__ import annotations

import pytest
import trio
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from trio.testing import MockClock

from sepp_trio.transport.server import GrpcServer, ServerCall
from tests.transport.hostile import RawClient, data, prefixed, reset, window_update
from tests.transport.server_tools import (
    ECHO,
    PARK,
    WATCH,
    BytesCodec,
    open_harness,
)


async def test_an_answer_that_left_is_delivered(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        await client.request(ECHO, b"me")
        # Too late to take anything back.
        await client.send(reset(1))
        await client.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert harness.service.undelivered == []


async def test_a_reset_while_the_handler_runs(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        await client.send(client.call(1, PARK, b"me"))
        await trio.testing.wait_all_tasks_blocked()
        await client.send(reset(1))
        await trio.testing.wait_all_tasks_blocked()
        assert harness.service.cancelled == [b"me"]
        assert harness.service.undelivered == [b"me"]


async def test_a_reset_while_the_answer_waits_for_a_window(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client({4: 20}, polite=False)
        await client.send(client.call(1, ECHO, b"x" * 16))
        await trio.testing.wait_all_tasks_blocked()
        assert harness.service.undelivered == []
        await client.send(reset(1))
        await trio.testing.wait_all_tasks_blocked()
        assert harness.service.undelivered == [b"x" * 16]
        # The others have their own windows.
        client.next_id = 3
        assert (await client.request(ECHO, b"on")).messages == [b"on"]


async def test_an_answer_whose_last_byte_left_late_is_delivered(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client({4: 20}, polite=False)
        await client.send(client.call(1, ECHO, b"x" * 16))
        await trio.testing.wait_all_tasks_blocked()
        await client.send(window_update(1, 1))
        assert (await client.answer(1)).messages == [b"x" * 16]
        assert harness.service.undelivered == []


async def test_a_connection_that_is_lost_with_answers_waiting(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client({4: 20}, polite=False)
        await client.send(client.call(1, ECHO, b"x" * 16), client.call(3, PARK, b"parked"))
        await trio.testing.wait_all_tasks_blocked()
        await client.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(harness.service.undelivered) == [b"parked", b"x" * 16]


async def test_a_fault_of_the_peer_with_answers_waiting(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client({4: 20}, polite=False)
        await client.send(client.call(1, ECHO, b"x" * 16))
        await trio.testing.wait_all_tasks_blocked()
        await client.send(window_update(0, 0))
        await client.drained()
        assert harness.service.undelivered == [b"x" * 16]


async def test_a_reset_of_the_protocol_s_own_making(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        await client.send(client.call(1, PARK, b"me"))
        await trio.testing.wait_all_tasks_blocked()
        await client.send(window_update(1, 0))
        assert (await client.answer(1)).reset == 1
        assert harness.service.undelivered == [b"me"]


async def test_a_timeout(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        await client.request(PARK, b"me", ("grpc-timeout", "1S"))
        assert harness.service.undelivered == [b"me"]


async def test_the_end_of_the_server(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        await client.send(client.call(1, PARK, b"me"))
        await trio.testing.wait_all_tasks_blocked()
    assert harness.service.undelivered == [b"me"]


async def test_a_streaming_call_that_is_reset(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        await client.send(client.call(1, WATCH, b"ab"))
        await client.until(lambda: 1 in client.answers and len(client.answers[1].data) == 12)
        await client.send(reset(1))
        await trio.testing.wait_all_tasks_blocked()
        assert harness.service.undelivered == [b"ab"]


async def test_a_streaming_call_that_ends_well(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        harness.service.release.set()
        client = await harness.client()
        assert (await client.request(WATCH, b"ab")).status == 0
        assert harness.service.undelivered == []


@pytest.mark.parametrize("failure", [GRPCError(Status.ABORTED), ValueError()])
@pytest.mark.parametrize("late", [False, True])
async def test_a_handler_that_fails_delivers_nothing(
    autojump_clock: MockClock, failure: Exception, late: bool
) -> None:
    told: list[str] = []

    async def handler(call: ServerCall) -> None:
        call.on_undelivered(lambda: told.append("first"))
        call.on_undelivered(lambda: told.append("second"))
        if late:
            await call.send_message(b"never")
        assert told == []
        raise failure

    async with trio.open_nursery() as nursery:
        client = await _client_of(nursery, handler)
        assert (await client.request(ECHO)).status != 0
        assert told == ["second"]
        await client.stream.aclose()


async def test_an_answer_that_does_not_encode_delivers_nothing(autojump_clock: MockClock) -> None:
    told: list[str] = []

    async def handler(call: ServerCall) -> None:
        call.on_undelivered(lambda: told.append("told"))
        await call.send_message(None)

    async with trio.open_nursery() as nursery:
        client = await _client_of(nursery, handler)
        assert (await client.request(ECHO)).status == 13
        assert told == ["told"]
        await client.stream.aclose()


async def test_a_handler_that_ends_after_its_peer_left_is_told(autojump_clock: MockClock) -> None:
    told: list[str] = []
    go = trio.Event()

    async def handler(call: ServerCall) -> None:
        call.on_undelivered(lambda: told.append("told"))
        with trio.CancelScope(shield=True):
            await go.wait()
        await call.send_message(b"too late")

    async with trio.open_nursery() as nursery:
        client = await _client_of(nursery, handler)
        await client.send(client.call(1, ECHO))
        await trio.testing.wait_all_tasks_blocked()
        await client.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert told == []
        go.set()
        await trio.testing.wait_all_tasks_blocked()
        assert told == ["told"]


async def test_a_callback_that_raises_harms_nobody(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    def callback() -> None:
        raise ValueError("a wrong callback")

    async def handler(call: ServerCall) -> None:
        call.on_undelivered(callback)
        raise GRPCError(Status.ABORTED)

    async with trio.open_nursery() as nursery:
        client = await _client_of(nursery, handler)
        assert (await client.request(ECHO)).status == 10
        assert (await client.request(ECHO)).status == 10
        assert "a wrong callback" in caplog.text
        await client.stream.aclose()


async def _client_of(nursery: trio.Nursery, handler: object) -> RawClient:
    server = GrpcServer(
        {ECHO: Handler(handler, Cardinality.UNARY_UNARY, bytes, bytes)}, codec=BytesCodec()
    )
    ours, theirs = trio.testing.memory_stream_pair()
    nursery.start_soon(server.serve_stream, theirs)
    client = RawClient(ours)
    await client.start()
    return client


async def test_a_request_cut_short_never_reaches_a_handler(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        await client.send(client.head(1, PARK), data(1, prefixed(b"me")[:-1], end=False))
        await trio.testing.wait_all_tasks_blocked()
        await client.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert harness.service.started == []
