"""Large messages, windows, and peers that read slowly or not at all (trial 35)."""

from __future__ import annotations

import socket

import pytest
import trio
from grpclib.const import Cardinality, Handler
from trio.testing import MockClock, wait_all_tasks_blocked

from sepp_trio.transport.server import GrpcServer, ServerCall, ServerConfig
from tests.transport.hostile import (
    BIG_WINDOW,
    RawClient,
    data,
    ping,
    prefixed,
    reset,
    settings,
    window_update,
)
from tests.transport.server_tools import ECHO, PARK, BytesCodec, Gate, open_harness

SIZES = [16_378, 16_379, 16_383, 16_384, 65_530, 65_535, 65_536, 271_828, 4 * 1024 * 1024 - 1]


def _bytes(size: int) -> bytes:
    return bytes(range(251)) * (size // 251) + bytes(size % 251)


@pytest.mark.parametrize("size", SIZES)
async def test_messages_of_any_size_come_back_as_they_were(
    autojump_clock: MockClock, size: int
) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        message = _bytes(size)
        assert (await client.request(ECHO, message)).messages == [message]


async def test_credit_comes_back_for_every_byte_also_of_calls_refused(
    autojump_clock: MockClock,
) -> None:
    async with open_harness(ServerConfig(max_message_bytes=1000)) as harness:
        client = await harness.client()
        for _ in range(40):
            number = client.new_id()
            await client.send(client.head(number, ECHO), data(number, prefixed(b"x" * 100_000)))
            assert (await client.answer(number)).status == 11
        sent = 40 * 100_005
        window = 65_535 + client.credit[0] - sent
        assert window > 1024 * 1024 // 2


async def test_a_window_is_kept_to_the_byte(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client(polite=False)
        message = _bytes(100_000)
        await client.send(client.call(1, ECHO, message))
        await client.until(lambda: 1 in client.answers and len(client.answers[1].data) == 65_535)
        await client.send(window_update(0, 10), ping())
        await client.until(lambda: len(client.pongs) == 1)
        assert len(client.answers[1].data) == 65_535
        await client.send(window_update(1, 4))
        await client.until(lambda: len(client.answers[1].data) == 65_539)
        await client.send(window_update(0, BIG_WINDOW), window_update(1, BIG_WINDOW))
        assert (await client.answer(1)).messages == [message]


async def test_a_window_that_shrinks_in_mid_answer_stops_it_until_it_is_positive(
    autojump_clock: MockClock,
) -> None:
    async with open_harness() as harness:
        client = await harness.client({4: 20_000}, polite=False, credit=BIG_WINDOW)
        message = _bytes(60_000)
        await client.send(client.call(1, ECHO, message))
        await client.until(lambda: 1 in client.answers and len(client.answers[1].data) == 20_000)
        # 19,000 bytes below zero now.
        await client.send(settings({4: 1000}), window_update(1, 19_000), ping())
        await client.until(lambda: len(client.pongs) == 1)
        assert len(client.answers[1].data) == 20_000
        await client.send(window_update(1, 1))
        await client.until(lambda: len(client.answers[1].data) == 20_001)
        await client.send(settings({4: 100_000}))
        assert (await client.answer(1)).messages == [message]


async def test_a_slow_answer_does_not_hold_up_the_others(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client({4: 10}, polite=False, credit=BIG_WINDOW)
        await client.send(client.call(1, ECHO, b"x" * 100))
        for number in (3, 5, 7):
            await client.send(client.call(number, ECHO, b"small"))
            assert (await client.answer(number)).messages == [b"small"]
        assert not client.answers[1].over


async def test_calls_wait_while_too_much_waits_for_their_peer(autojump_clock: MockClock) -> None:
    async with open_harness(ServerConfig(max_unsent_bytes=10_000)) as harness:
        client = await harness.client({4: 0}, polite=False, credit=BIG_WINDOW)
        numbers = range(1, 101, 2)
        for number in numbers:
            await client.send(client.call(number, ECHO, b"x" * 1000))
            await wait_all_tasks_blocked()
        # Eleven answers are more than is allowed: no other call was begun.
        assert len(harness.service.started) == 11
        other = await harness.client()
        assert (await other.request(ECHO, b"fine")).messages == [b"fine"]
        await client.send(settings({4: 10_000}))
        for number in numbers:
            assert (await client.answer(number)).messages == [b"x" * 1000]


async def test_running_calls_wait_as_well(autojump_clock: MockClock) -> None:
    async with open_harness(ServerConfig(max_unsent_bytes=10_000)) as harness:
        client = await harness.client({4: 0}, polite=False, credit=BIG_WINDOW)
        encoded: list[int] = []

        class CountingCodec(BytesCodec):
            def encode(self, message: bytes, message_type: type[bytes]) -> bytes:
                encoded.append(len(message))
                return message

        harness.server.codec = CountingCodec()
        numbers = range(1, 101, 2)
        await client.send(*(client.call(number, PARK, b"x" * 1000) for number in numbers))
        await wait_all_tasks_blocked()
        for _ in numbers:
            harness.service.release.set()
            await wait_all_tasks_blocked()
        # Those of one pass of the loop do not see each other's answers yet.
        assert len(encoded) <= 50
        await client.send(settings({4: 10_000}))
        for number in numbers:
            assert (await client.answer(number)).messages == [b"x" * 1000]


async def test_requests_that_wait_are_bounded_and_may_be_reset(autojump_clock: MockClock) -> None:
    config = ServerConfig(max_unsent_bytes=1000, max_buffered_bytes=250_000)
    async with open_harness(config) as harness:
        client = await harness.client({4: 0}, polite=False, credit=BIG_WINDOW)
        await client.send(client.call(1, ECHO, b"x" * 2000))
        await wait_all_tasks_blocked()
        for number in (3, 5, 7):
            await client.send(client.call(number, ECHO, b"y" * 100_000))
        assert (await client.answer(7)).reset == 7
        await client.send(reset(3))
        await wait_all_tasks_blocked()
        await client.send(settings({4: 1_000_000}))
        assert (await client.answer(5)).messages == [b"y" * 100_000]
        assert harness.service.started == [b"x" * 2000, b"y" * 100_000]


async def test_requests_that_wait_and_are_reset_leave_nothing_behind(
    autojump_clock: MockClock,
) -> None:
    async with open_harness(ServerConfig(max_unsent_bytes=1000)) as harness:
        client = await harness.client({4: 0}, polite=False)
        (link,) = harness.server._links
        await client.send(client.call(1, ECHO, b"x" * 2000))
        await wait_all_tasks_blocked()
        for number in range(3, 203, 2):
            await client.send(client.call(number, ECHO, b"y" * 1000))
            await wait_all_tasks_blocked()
            assert link._held_bytes == 1000
            await client.send(reset(number))
            await wait_all_tasks_blocked()
        assert (link._held, link._held_bytes) == ({}, 0)
        assert client.goaways == []


async def test_a_connection_lost_with_requests_waiting_starts_none_of_them(
    autojump_clock: MockClock,
) -> None:
    async with open_harness(ServerConfig(max_unsent_bytes=1000)) as harness:
        client = await harness.client({4: 0}, polite=False)
        await client.send(client.call(1, ECHO, b"x" * 2000))
        await wait_all_tasks_blocked()
        await client.send(client.call(3, ECHO, b"y"))
        await wait_all_tasks_blocked()
        await client.stream.aclose()
        await wait_all_tasks_blocked()
        assert harness.service.started == [b"x" * 2000]
        assert not harness.nursery.child_tasks


async def test_a_full_socket_holds_nobody_else_up(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        gate = Gate()
        client = await harness.client(gate=gate)
        gate.shut = True
        await client.send(client.call(1, ECHO, b"me"))
        await wait_all_tasks_blocked()
        other = await harness.client()
        assert (await other.request(ECHO, b"fine")).messages == [b"fine"]
        gate.open()
        assert (await client.answer(1)).messages == [b"me"]


async def test_a_slow_reader_on_a_socket_gets_everything() -> None:
    async def handler(call: ServerCall) -> None:
        await call.recv_message()
        await call.send_message(_bytes(500_000))

    server = GrpcServer(
        {ECHO: Handler(handler, Cardinality.UNARY_UNARY, bytes, bytes)}, codec=BytesCodec()
    )
    left, right = socket.socketpair()
    for end in (left, right):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    async with trio.open_nursery() as nursery:
        theirs = trio.SocketStream(trio.socket.from_stdlib_socket(right))
        nursery.start_soon(server.serve_stream, theirs)
        client = RawClient(trio.SocketStream(trio.socket.from_stdlib_socket(left)))
        await client.start({4: 2**31 - 1}, credit=BIG_WINDOW)
        numbers = [client.new_id() for _ in range(20)]
        await client.send(*(client.call(number, ECHO) for number in numbers))
        await trio.sleep(0.05)
        for number in numbers:
            assert (await client.answer(number)).messages == [_bytes(500_000)]
        await client.stream.aclose()
