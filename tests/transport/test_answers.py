"""Odd answers: each is one typed error of one call, and the connection goes on."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
from grpclib.const import Status

from sepp_trio.transport import CallError, open_channel

from .peer import (
    ECHO,
    END_STREAM,
    HEADS,
    RST_STREAM,
    Network,
    data,
    headers,
    message,
    rst_stream,
    status_fields,
)

OK = status_fields(0)
HTML = ("content-type", "text/html")


async def answered_with(nursery: trio.Nursery, *frames: bytes) -> CallError:
    """The error of a call (on stream 1) that these frames answer.

    Afterwards the connection must serve another call, and nothing be left.
    """
    network = Network()

    async def serve() -> None:
        peer = await network.peer(0)
        await peer.request()
        await peer.send(*frames)
        await peer.serve()

    nursery.start_soon(serve)
    async with open_channel(network.connect, authority="peer") as channel:
        with pytest.raises(CallError) as caught, trio.fail_after(5):
            await channel.unary(ECHO, b"")
        with trio.fail_after(5):
            assert await channel.unary(ECHO, b"on") == b"on"
        statistics = channel.statistics()
        assert (statistics.calls_open, statistics.connections) == (0, 1)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "status", "origin", "text"),
    [
        ([*HEADS, *status_fields(5)], Status.NOT_FOUND, "server", ""),
        (
            [(":status", "503"), *status_fields(14, "going down")],
            Status.UNAVAILABLE,
            "server",
            "going down",
        ),
        ([(":status", "401")], Status.UNAUTHENTICATED, "server", "401"),
        ([(":status", "403")], Status.PERMISSION_DENIED, "server", "403"),
        ([(":status", "404")], Status.UNIMPLEMENTED, "server", "404"),
        ([(":status", "429")], Status.UNAVAILABLE, "server", "429"),
        ([(":status", "431")], Status.UNKNOWN, "server", "431"),
        ([(":status", "503"), *OK], Status.UNAVAILABLE, "server", "503"),
        ([(":status", "200"), HTML], Status.UNKNOWN, "local", "text/html"),
        ([*HEADS], Status.INTERNAL, "local", "without a grpc-status"),
        ([*HEADS, *OK], Status.INTERNAL, "local", "no message"),
        ([*HEADS, *status_fields("abc")], Status.UNKNOWN, "local", "no number"),
        ([*HEADS, *status_fields(77)], Status.UNKNOWN, "local", "77"),
    ],
)
async def test_one_block_that_ends_the_call(
    fields: list[tuple[str, str]], status: Status, origin: str, text: str, nursery: trio.Nursery
) -> None:
    """Trial 29."""
    error = await answered_with(nursery, headers(1, fields, END_STREAM))
    assert (error.status, error.origin) == (status, origin)
    assert text in error.message
    assert not error.unprocessed


@pytest.mark.parametrize("ended", [True, False])
async def test_a_web_page_is_mapped_by_its_http_status(ended: bool, nursery: trio.Nursery) -> None:
    """Trial 29 (c): also if the page never ends."""
    error = await answered_with(
        nursery,
        headers(1, [(":status", "502"), HTML]),
        data(1, b"<html>bad gateway</html>", END_STREAM if ended else 0),
    )
    assert error.status is Status.UNAVAILABLE
    assert "502" in error.message
    assert "text/html" in error.message


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "no message"),
        (b"\0\0\0", "cut off"),
        (b"\0\0\0\0\x7fx", "cut off"),
        (b"\0\xff\xff", "cut off"),
        (message(b"one") + message(b"two"), "more than one"),
        (message(b"x", flag=1), "compressed"),
    ],
)
async def test_a_body_that_is_no_single_message(
    body: bytes, text: str, nursery: trio.Nursery
) -> None:
    """Trial 26."""
    error = await answered_with(
        nursery, headers(1, HEADS), data(1, body), headers(1, OK, END_STREAM)
    )
    assert (error.status, error.origin) == (Status.INTERNAL, "local")
    assert text in error.message


async def test_a_body_without_trailers(nursery: trio.Nursery) -> None:
    """Trial 26, and 29 (e)."""
    error = await answered_with(nursery, headers(1, HEADS), data(1, message(b"x"), END_STREAM))
    assert error.status is Status.INTERNAL
    error = await answered_with(
        nursery, headers(1, HEADS), data(1, message(b"x")), headers(1, [("x", "y")], END_STREAM)
    )
    assert error.status is Status.INTERNAL
    assert "grpc-status" in error.message


async def test_an_error_after_a_message_is_the_error(nursery: trio.Nursery) -> None:
    error = await answered_with(
        nursery,
        headers(1, HEADS),
        data(1, message(b"x")),
        headers(1, status_fields(10, "late"), END_STREAM),
    )
    assert (error.status, error.message) == (Status.ABORTED, "late")


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([data(1, message(b"x"))], "data before headers"),
        ([headers(1, [("content-type", "application/grpc")])], "without :status"),
        ([headers(1, HEADS), headers(1, OK)], "trailers that do not end"),
        ([headers(1, HEADS), headers(1, HEADS, END_STREAM)], ":status in trailers"),
        ([headers(1, [(":status", "100")], END_STREAM)], "1xx"),
        ([headers(1, [(":status", "20x"), *HEADS])], ":status"),
        ([headers(1, [*HEADS, (":late", "x")])], "pseudo-header"),
        ([headers(1, [(":odd", "x"), *HEADS])], "pseudo-header"),
        ([headers(1, [*HEADS, ("Upper", "x")])], "capitals"),
        ([headers(1, [*HEADS, ("connection", "close")])], "HTTP/1"),
        ([headers(1, [*HEADS, *[("a", "b")] * 500])], "more headers"),
    ],
)
async def test_a_malformed_answer_is_reset(
    frames: list[bytes], text: str, nursery: trio.Nursery
) -> None:
    error = await answered_with(nursery, *frames)
    assert (error.status, error.origin) == (Status.INTERNAL, "connection")
    assert text in error.message


async def test_an_interim_answer_is_passed_over(nursery: trio.Nursery) -> None:
    error = await answered_with(
        nursery,
        headers(1, [(":status", "103"), ("link", "x")]),
        headers(1, [*HEADS, *status_fields(9)], END_STREAM),
    )
    assert error.status is Status.FAILED_PRECONDITION


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, Status.INTERNAL),
        (2, Status.INTERNAL),
        (8, Status.CANCELLED),
        (11, Status.RESOURCE_EXHAUSTED),
        (12, Status.PERMISSION_DENIED),
        (99, Status.INTERNAL),
    ],
)
async def test_a_reset_is_mapped_by_its_code(
    code: int, status: Status, nursery: trio.Nursery
) -> None:
    error = await answered_with(nursery, rst_stream(1, code))
    assert (error.status, error.origin, error.unprocessed) == (status, "connection", False)


async def test_a_reset_after_the_answer_changes_nothing(nursery: trio.Nursery) -> None:
    error = await answered_with(
        nursery, headers(1, [*HEADS, *status_fields(3)], END_STREAM), rst_stream(1, 0)
    )
    assert error.status is Status.INVALID_ARGUMENT


async def test_an_answer_before_the_request_has_ended_counts(nursery: trio.Nursery) -> None:
    network = Network()

    async def serve() -> None:
        peer = await network.peer(0)
        peer.give_credit = False
        while not peer.requests:
            await peer.frame()
        await peer.refuse(1, 11, "too large")
        await peer.send(rst_stream(1, 0))
        peer.give_credit = True
        assert (await peer.wait_for(RST_STREAM)).stream == 1
        await peer.serve()

    nursery.start_soon(serve)
    async with open_channel(network.connect, authority="peer") as channel:
        with pytest.raises(CallError) as caught:
            await channel.unary(ECHO, b"x" * 200_000)
        assert caught.value.status is Status.OUT_OF_RANGE
        assert await channel.unary(ECHO, b"on") == b"on"


async def test_a_message_over_the_receive_limit_is_refused(nursery: trio.Nursery) -> None:
    network = Network()
    nursery.start_soon(network.serve)
    async with open_channel(
        network.connect, authority="peer", max_receive_message_bytes=1000
    ) as channel:
        assert len(await channel.unary(ECHO, b"x" * 1000)) == 1000
        with pytest.raises(CallError, match="1001 bytes") as caught:
            await channel.unary(ECHO, b"x" * 1001)
        assert (caught.value.status, caught.value.origin) == (Status.RESOURCE_EXHAUSTED, "local")
        assert await channel.unary(ECHO, b"on") == b"on"
    await network.peers[0].read_to_end()
    assert network.peers[0].count(RST_STREAM) == 1


async def test_a_refused_call_is_repeated_unseen(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = Network()

    async def serve() -> None:
        peer = await network.peer(0)
        for _ in range(3):
            await peer.send(rst_stream((await peer.request()).stream, 7))
        await peer.serve()

    nursery.start_soon(serve)
    async with open_channel(network.connect, authority="peer") as channel:
        assert await channel.unary(ECHO, b"again") == b"again"
        assert channel.statistics().connections == 1


async def test_a_call_refused_too_often_fails_as_unprocessed(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = Network()

    async def serve() -> None:
        peer = await network.peer(0)
        with suppress(EOFError):
            while True:
                await peer.send(rst_stream((await peer.request()).stream, 7))

    results: list[CallError | None] = []
    async with open_channel(network.connect, authority="peer") as channel:
        nursery.start_soon(serve)
        with pytest.raises(CallError) as caught:
            await channel.unary(ECHO, b"")
        assert (caught.value.status, caught.value.unprocessed) == (Status.UNAVAILABLE, True)
        # One that pauses is given up, another ends with the channel.
        with trio.move_on_after(0.001) as scope:
            await channel.unary(ECHO, b"")
        assert scope.cancelled_caught
        channel.start_unary(ECHO, b"", lambda _, error: results.append(error), timeout=None)
        await trio.testing.wait_all_tasks_blocked()
    assert [error and error.unprocessed for error in results] == [True]
