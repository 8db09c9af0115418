"""Windows, stream limits and one writer: calls under pressure."""

from __future__ import annotations

import time

import pytest
import trio

from sepp_trio.transport import open_channel

from .peer import (
    DATA,
    ECHO,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    HEADS,
    RST_STREAM,
    WINDOW_UPDATE,
    Network,
    Peer,
    answer,
    data,
    frame,
    headers,
    message,
    rst_stream,
    settings,
    socket_pair,
    status_fields,
    window_update,
)

CONNECTION_WINDOW = 16 << 20


@pytest.mark.parametrize("size", [16379, 16384, 65535, 65536, 271_828, (4 << 20) - 1])
async def test_large_messages_pass_both_ways(size: int, nursery: trio.Nursery) -> None:
    """Trial 35."""
    network = Network()
    nursery.start_soon(network.serve)
    payload = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    async with open_channel(network.connect, authority="peer") as channel:
        with trio.fail_after(20):
            assert await channel.unary(ECHO, payload) == payload
        assert await channel.unary(ECHO, b"") == b""


async def test_an_upload_waits_out_a_window_that_became_negative() -> None:
    """Trial 35: the peer shrinks the window in mid-upload."""
    network = Network()
    async with open_channel(network.connect, authority="peer") as channel:
        peer = network.peers[0]
        peer.give_credit = False
        replies: list[object] = []
        channel.start_unary(ECHO, b"x" * 100_000, lambda *r: replies.append(r), timeout=None)
        await trio.testing.wait_all_tasks_blocked()
        # 65535 bytes are under way; with a window of 1000, 64535 too many.
        await peer.send(settings({4: 1000}), window_update(0, 1 << 20))
        await peer.send(window_update(1, 64_534))
        await trio.testing.wait_all_tasks_blocked()
        while len(peer.requests) == 0 or len(peer.requests[1].body) < 65_535:
            await peer.frame()
        assert len(peer.requests[1].body) == 65_535
        await peer.send(window_update(1, 2))
        while len(peer.requests[1].body) < 65_536:
            await peer.frame()
        assert len(peer.requests[1].body) == 65_536
        await peer.send(settings({4: 100_000}))
        request = await peer.request()
        assert request.message == b"x" * 100_000
        await peer.answer(1, b"ok")
        await trio.testing.wait_all_tasks_blocked()
        assert replies == [(b"ok", None)]


async def test_a_stalled_upload_holds_nobody_else_up(nursery: trio.Nursery) -> None:
    network = Network()
    async with open_channel(network.connect, authority="peer") as channel:
        peer = network.peers[0]
        peer.give_credit = False
        await peer.send(window_update(0, 1 << 20))
        stalled = channel.start_unary(ECHO, b"x" * 100_000, lambda *_: None, timeout=None)
        nursery.start_soon(peer.serve)
        with trio.fail_after(10):
            assert await channel.unary(ECHO, b"y") == b"y"
        stalled.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert channel.statistics().calls_open == 0
        assert peer.count(RST_STREAM) == 1


async def test_data_of_cancelled_calls_is_given_back(nursery: trio.Nursery) -> None:
    """Trial 8: several times the window, for calls that nobody reads."""
    network = Network()
    window = CONNECTION_WINDOW
    async with open_channel(network.connect, authority="peer") as channel:
        peer = network.peers[0]
        for _ in range(600):
            call = channel.start_unary(ECHO, b"", lambda *_: None, timeout=None)
            request = await peer.request()
            body = message(b"x" * 60_000)
            await peer.send(headers(request.stream, HEADS), data(request.stream, body[:16384]))
            await trio.testing.wait_all_tasks_blocked()
            call.cancel()
            await peer.send(data(request.stream, body[16384:]))
            window -= len(body)
        nursery.start_soon(peer.serve)
        big = b"y" * (1 << 20)
        with trio.fail_after(10):
            assert await channel.unary(ECHO, big) == big
        await trio.testing.wait_all_tasks_blocked()
        window -= len(big) + 5
        credit = [f for f in peer.frames if f.kind == WINDOW_UPDATE and f.stream == 0]
        window += sum(int.from_bytes(f.payload) for f in credit[1:])
        # Within the amount that is given back at once.
        assert CONNECTION_WINDOW // 2 <= window <= CONNECTION_WINDOW
        assert channel.statistics().connections == 1


async def test_a_cancelled_writer_corrupts_nothing(nursery: trio.Nursery) -> None:
    """Trial 9: the peer does not read while calls come and go, then sees clean frames."""
    network = Network(lambda peer: peer.greet({4: 1 << 24}), pair=socket_pair)
    async with network, open_channel(network.connect, authority="peer") as channel:
        peer = network.peers[0]
        await peer.send(window_update(0, 1 << 24))
        replies: list[bytes] = []

        async def call(name: bytes) -> None:
            replies.append(await channel.unary(ECHO, name, urgent=True))

        with trio.fail_after(10):
            async with trio.open_nursery() as callers:
                with trio.move_on_after(0.05) as scope:
                    await channel.unary(ECHO, b"x" * (2 << 20))
                assert scope.cancelled_caught
                for number in range(50):
                    callers.start_soon(call, bytes([number]))
                await trio.sleep(0.05)
                nursery.start_soon(peer.serve)
        assert sorted(replies) == [bytes([number]) for number in range(50)]
        assert channel.statistics().connections == 1
        assert [f.stream for f in peer.frames if f.kind == RST_STREAM] == [1]


async def test_a_burst_over_the_stream_limit_is_served_in_order(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """Trial 34."""

    async def silent(peer: Peer) -> None:
        pass

    network = Network(silent)
    order: list[int] = []
    most = open_now = 0

    async def serve() -> None:
        nonlocal most, open_now
        peer = await network.peer(0)
        await trio.sleep(0.1)
        await peer.greet({3: 2})
        refused = False
        async with trio.open_nursery() as answers:

            async def reply(stream: int, payload: bytes) -> None:
                nonlocal open_now
                await trio.sleep(0.05)
                open_now -= 1
                await peer.answer(stream, payload)

            while len(order) < 100:
                request = await peer.request()
                if request.message == b"\x14" and not refused:
                    refused = True
                    await peer.send(rst_stream(request.stream, 7))
                    continue
                open_now += 1
                most = max(most, open_now)
                order.append(request.message[0])
                answers.start_soon(reply, request.stream, request.message)

    nursery.start_soon(serve)
    cpu = time.process_time()
    async with open_channel(network.connect, authority="peer") as channel:

        async def call(number: int) -> None:
            assert await channel.unary(ECHO, bytes([number]), timeout=30) == bytes([number])

        async with trio.open_nursery() as callers:
            for number in range(100):
                callers.start_soon(call, number)
                await trio.lowlevel.checkpoint()
    assert most <= 2
    assert sorted(order) == list(range(100))
    calm = [number for number in order if number != 0x14]
    assert calm == sorted(calm)
    assert time.process_time() - cpu < 2


async def test_a_deadline_counts_while_a_call_waits_for_a_stream(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Trial 34."""
    network = Network(lambda peer: peer.greet({3: 0}))
    async with open_channel(network.connect, authority="peer") as channel:
        with trio.move_on_after(2) as scope:
            await channel.unary(ECHO, b"", long_poll=True)
        assert scope.cancelled_caught
        assert channel.statistics().calls_waiting == 0
        # The limit may rise later.
        channel.start_unary(ECHO, b"", lambda *_: None, timeout=None, long_poll=True)
        await network.peers[0].send(settings({3: 1}))
        assert (await network.peers[0].request()).stream == 1


async def test_answers_may_come_in_any_order_and_in_single_bytes(
    nursery: trio.Nursery,
) -> None:
    network = Network()
    replies: list[object] = []
    async with open_channel(network.connect, authority="peer") as channel:
        for name in (b"a", b"b"):
            channel.start_unary(ECHO, name, lambda *got: replies.append(got), timeout=None)
        peer = network.peers[0]
        await peer.request()
        await peer.request()
        for byte in answer(3, b"second") + answer(1, b"first"):
            await peer.send(bytes([byte]))
        await trio.testing.wait_all_tasks_blocked()
        assert replies == [(b"second", None), (b"first", None)]


async def test_padding_and_priorities_are_understood(nursery: trio.Nursery) -> None:
    network = Network()
    async with open_channel(network.connect, authority="peer") as channel:

        async def serve() -> None:
            peer = network.peers[0]
            await peer.request()
            head = headers(1, HEADS)[9:]
            split = head[:3], head[3:]
            padded = b"\x02" + b"\0\0\0\0\x10" + split[0] + b"\0\0"
            body = b"\x03" + message(b"x") + b"\0\0\0"
            await peer.send(
                frame(HEADERS, 0x8 | 0x20, 1, padded),
                frame(9, END_HEADERS, 1, split[1]),
                frame(2, 0, 1, b"\0\0\0\0\x10"),
                frame(0xBE, 0, 1, b"unknown"),
                frame(DATA, 0x8, 1, body),
                headers(1, status_fields(0), END_STREAM),
            )

        nursery.start_soon(serve)
        assert await channel.unary(ECHO, b"") == b"x"
