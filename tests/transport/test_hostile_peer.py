"""A server that breaks the protocol: GOAWAY with the right code, calls fail at once."""

from __future__ import annotations

import tracemalloc

import pytest
import trio
from grpclib.const import Status

from sepp_trio.transport import CallError, open_channel
from sepp_trio.transport._frames import Code

from .peer import (
    ACK,
    DATA,
    ECHO,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    HEADS,
    PING,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Network,
    data,
    frame,
    headers,
    settings,
    window_update,
)

PRIORITY, PUSH_PROMISE, CONTINUATION = 2, 5, 9


async def outcome(nursery: trio.Nursery, *frames: bytes) -> tuple[Code, CallError]:
    """Send these frames while a call is open: GOAWAY's code, and the call's error."""
    network = Network()
    code = Code.NO_ERROR

    async def serve() -> None:
        nonlocal code
        peer = await network.peer(0)
        await peer.request()
        await peer.send(*frames)
        code = Code((await peer.wait_for(GOAWAY)).code)
        await peer.read_to_end()

    async with open_channel(network.connect, authority="peer") as channel:
        async with trio.open_nursery() as server:
            server.start_soon(serve)
            with pytest.raises(CallError) as caught, trio.fail_after(10):
                await channel.unary(ECHO, b"")
        nursery.start_soon(network.serve, 1)
        assert await channel.unary(ECHO, b"elsewhere") == b"elsewhere"
    return code, caught.value


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (frame(DATA, 0, 1, b"x" * (256 * 1024 + 1)), Code.FRAME_SIZE_ERROR),
        (frame(SETTINGS, 0, 0, b"12345"), Code.FRAME_SIZE_ERROR),
        (frame(SETTINGS, ACK, 0, b"123456"), Code.FRAME_SIZE_ERROR),
        (frame(SETTINGS, 0, 1), Code.PROTOCOL_ERROR),
        (settings({2: 2}), Code.PROTOCOL_ERROR),
        (settings({4: 1 << 31}), Code.FLOW_CONTROL_ERROR),
        (settings({5: 1 << 24}), Code.PROTOCOL_ERROR),
        (window_update(1, 1 << 30) + settings({4: (1 << 31) - 1}), Code.FLOW_CONTROL_ERROR),
        (frame(PING, 0, 0, b"short"), Code.FRAME_SIZE_ERROR),
        (frame(PING, 0, 1, b"12345678"), Code.PROTOCOL_ERROR),
        (frame(GOAWAY, 0, 0, b"1234567"), Code.FRAME_SIZE_ERROR),
        (frame(RST_STREAM, 0, 1, b"123"), Code.FRAME_SIZE_ERROR),
        (frame(RST_STREAM, 0, 3, b"1234"), Code.PROTOCOL_ERROR),
        (frame(RST_STREAM, 0, 0, b"1234"), Code.PROTOCOL_ERROR),
        (frame(WINDOW_UPDATE, 0, 0, b"12345"), Code.FRAME_SIZE_ERROR),
        (window_update(0, 0), Code.PROTOCOL_ERROR),
        (window_update(0, (1 << 31) - 1), Code.FLOW_CONTROL_ERROR),
        (window_update(7, 1), Code.PROTOCOL_ERROR),
        (data(2, b"x"), Code.PROTOCOL_ERROR),
        (data(0, b"x"), Code.PROTOCOL_ERROR),
        (headers(2, HEADS), Code.PROTOCOL_ERROR),
        (headers(0, HEADS), Code.PROTOCOL_ERROR),
        (headers(5, HEADS), Code.PROTOCOL_ERROR),
        (frame(PRIORITY, 0, 0, b"12345"), Code.PROTOCOL_ERROR),
        (frame(PUSH_PROMISE, END_HEADERS, 1, b"\0\0\0\x02"), Code.PROTOCOL_ERROR),
        (frame(CONTINUATION, END_HEADERS, 1), Code.PROTOCOL_ERROR),
        (frame(HEADERS, 0, 1) + frame(PING, 0, 0, b"12345678"), Code.PROTOCOL_ERROR),
        (frame(HEADERS, 0, 1) + frame(CONTINUATION, 0, 3), Code.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS | 0x20, 1, b"1234"), Code.FRAME_SIZE_ERROR),
        (frame(HEADERS, END_HEADERS | 0x20, 1, b"\0\0\0\x01\0"), Code.PROTOCOL_ERROR),
        (frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff"), Code.COMPRESSION_ERROR),
        (frame(HEADERS, END_HEADERS, 1, b"\xfe"), Code.COMPRESSION_ERROR),
        (frame(HEADERS, END_HEADERS, 1, b"\x3f\xe2\x1f\x88"), Code.COMPRESSION_ERROR),
        (frame(DATA, 0x8, 1, b""), Code.PROTOCOL_ERROR),
        (frame(DATA, 0x8, 1, b"\x05abc"), Code.PROTOCOL_ERROR),
    ],
)
async def test_a_connection_fault_ends_the_connection(
    frames: bytes, code: Code, nursery: trio.Nursery
) -> None:
    got, error = await outcome(nursery, frames)
    assert got == code
    assert (error.status, error.origin) == (Status.UNAVAILABLE, "connection")
    assert "broke the protocol" in error.message


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (window_update(1, 0), Code.PROTOCOL_ERROR),
        (window_update(1, (1 << 31) - 1), Code.FLOW_CONTROL_ERROR),
        (frame(PRIORITY, 0, 1, b"1234"), Code.FRAME_SIZE_ERROR),
        (frame(PRIORITY, 0, 1, b"\0\0\0\x01\0"), Code.PROTOCOL_ERROR),
    ],
)
async def test_a_stream_fault_ends_only_its_call(
    frames: bytes, code: Code, nursery: trio.Nursery
) -> None:
    network = Network()

    async def serve() -> None:
        peer = await network.peer(0)
        await peer.request()
        await peer.send(frames)
        assert (await peer.wait_for(RST_STREAM)).code == code
        await peer.serve()

    nursery.start_soon(serve)
    async with open_channel(network.connect, authority="peer") as channel:
        with pytest.raises(CallError) as caught:
            await channel.unary(ECHO, b"")
        assert caught.value.status in (Status.INTERNAL, Status.UNAVAILABLE)
        assert await channel.unary(ECHO, b"on") == b"on"
        assert channel.statistics().connections == 1


async def test_seventy_kilobytes_of_headers_end_the_connection(nursery: trio.Nursery) -> None:
    """Trial 37, client half: a small block that decodes to much."""
    block = b"\x20\x88" + b"\x10\x01a\x7f\x81\x1f" + b"x" * 4096
    for _ in range(17):
        block += b"\x10\x01a\x7f\x81\x1e" + b"x" * 3968
    first, rest = block[:16384], block[16384:]
    parts = [rest[at : at + 16384] for at in range(0, len(rest), 16384)]
    frames = [frame(HEADERS, 0, 1, first)]
    frames += [
        frame(CONTINUATION, END_HEADERS if part is parts[-1] else 0, 1, part) for part in parts
    ]
    code, error = await outcome(nursery, *frames)
    assert code == Code.ENHANCE_YOUR_CALM
    assert error.status is Status.UNAVAILABLE


async def test_endless_continuations_end_the_connection(nursery: trio.Nursery) -> None:
    """Trial 37, client half."""
    tracemalloc.start()
    try:
        frames = [frame(HEADERS, 0, 1, b"\x20")] + [frame(CONTINUATION, 0, 1)] * 10_000
        code, _ = await outcome(nursery, *frames)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert code == Code.ENHANCE_YOUR_CALM
    assert peak < 10_000_000


async def test_a_huge_compressed_block_ends_the_connection(nursery: trio.Nursery) -> None:
    """Trial 37: an indexed field repeated is one byte on the wire and more in memory."""
    block = b"\x20" + b"\x82" * 16000
    code, _ = await outcome(nursery, frame(HEADERS, END_HEADERS, 1, block))
    assert code == Code.ENHANCE_YOUR_CALM


async def test_frames_of_finished_calls_are_no_fault(nursery: trio.Nursery) -> None:
    network = Network()

    async def serve() -> None:
        peer = await network.peer(0)
        await peer.request()
        await peer.answer(1, b"x")
        await peer.send(
            data(1, b"late"),
            headers(1, HEADS),
            window_update(1, 5),
            frame(RST_STREAM, 0, 1, b"\0\0\0\0"),
        )
        await peer.serve()

    nursery.start_soon(serve)
    async with open_channel(network.connect, authority="peer") as channel:
        assert await channel.unary(ECHO, b"") == b"x"
        assert await channel.unary(ECHO, b"y") == b"y"
        assert channel.statistics().connections == 1
