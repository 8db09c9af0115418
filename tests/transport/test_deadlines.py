"""Deadlines of calls: whose they are, what is sent, and how they end."""

from __future__ import annotations

import math

import pytest
import trio
from grpclib.const import Status

from sepp_trio.transport import CallError, open_channel
from sepp_trio.transport._method import timeout_text

from .peer import ECHO, RST_STREAM, Network


@pytest.mark.parametrize("timeout", [0, -1.0])
async def test_a_deadline_in_the_past_fails_without_sending(
    timeout: float, nursery: trio.Nursery
) -> None:
    network = Network()
    nursery.start_soon(network.serve)
    results: list[CallError | None] = []
    async with open_channel(network.connect, authority="peer") as channel:
        with pytest.raises(CallError) as caught, trio.testing.assert_checkpoints():
            await channel.unary(ECHO, b"late", timeout=timeout)
        assert caught.value.status is Status.DEADLINE_EXCEEDED
        assert caught.value.origin == "local"
        channel.start_unary(ECHO, b"", lambda _, error: results.append(error), timeout=timeout)
        assert results == []
        await trio.testing.wait_all_tasks_blocked()
        assert [error and error.status for error in results] == [Status.DEADLINE_EXCEEDED]
        assert await channel.unary(ECHO, b"x") == b"x"
    assert [r.message for r in network.peers[0].requests.values()] == [b"x"]


async def test_the_own_deadline_ends_a_call(autojump_clock: trio.testing.MockClock) -> None:
    network = Network()
    async with open_channel(network.connect, authority="peer") as channel:
        start = trio.current_time()
        with pytest.raises(CallError) as caught:
            await channel.unary(ECHO, b"", timeout=3, long_poll=True)
        assert trio.current_time() - start == pytest.approx(3)
        assert caught.value.status is Status.DEADLINE_EXCEEDED
        assert caught.value.origin == "local"
        assert channel.statistics().calls_open == 0
        assert (await network.peers[0].wait_for(RST_STREAM)).code == 8


async def test_a_shorter_deadline_that_comes_later_is_kept(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network = Network()
    ended: list[float] = []
    async with open_channel(network.connect, authority="peer") as channel:
        start = trio.current_time()

        def note(_: bytes | None, error: CallError | None) -> None:
            assert error is not None
            ended.append(trio.current_time() - start)

        for timeout in (4, 2, 3):
            channel.start_unary(ECHO, b"", note, timeout=timeout, long_poll=True)
            await trio.sleep(0.25)
        await trio.sleep(10)
    assert ended == [pytest.approx(at) for at in (2.25, 3.5, 4)]


@pytest.mark.parametrize("status", [1, 4])
async def test_the_servers_word_for_the_own_deadline_is_deadline_exceeded(
    status: int, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = Network()

    async def serve() -> None:
        peer = await network.peer(0)
        for at in (1.0, 2.95):
            request = await peer.request()
            await trio.sleep(at)
            await peer.refuse(request.stream, status, "Timeout expired")

    nursery.start_soon(serve)
    async with open_channel(network.connect, authority="peer") as channel:
        # Long before the deadline it is the server's own affair.
        with pytest.raises(CallError) as caught:
            await channel.unary(ECHO, b"", timeout=3)
        assert caught.value.origin == "server"
        with pytest.raises(CallError) as caught:
            await channel.unary(ECHO, b"", timeout=3)
        assert caught.value.status is Status.DEADLINE_EXCEEDED
        assert caught.value.origin == "local"


async def test_the_servers_word_for_the_callers_deadline_is_a_cancel(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = Network()

    async def serve() -> None:
        peer = await network.peer(0)
        request = await peer.request()
        assert request.headers["grpc-timeout"] == "3000m"
        await trio.sleep(2.99)
        await peer.refuse(request.stream, 1, "Timeout expired")

    nursery.start_soon(serve)
    async with open_channel(network.connect, authority="peer") as channel:
        with trio.move_on_after(3) as scope:
            await channel.unary(ECHO, b"", timeout=9)
        assert scope.cancelled_caught


async def test_the_nearer_deadline_is_sent(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = Network()
    nursery.start_soon(network.serve)
    async with open_channel(network.connect, authority="peer") as channel:
        with trio.move_on_after(5):
            await channel.unary(ECHO, b"", timeout=8)
            await channel.unary(ECHO, b"", timeout=2)
            await channel.unary(ECHO, b"")
        await channel.unary(ECHO, b"")
        await channel.unary(ECHO, b"", timeout=math.inf)
    sent = [r.headers.get("grpc-timeout") for r in network.peers[0].requests.values()]
    assert sent == ["5000m", "2000m", "5000m", None, None]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1e-10, "1m"),
        (0.0015, "2m"),
        (10.9, "10900m"),
        (99_999.999, "99999999m"),
        (172_810, "172810S"),
        (172_810.5, "172811S"),
        (1e9, "16666667M"),
        (1e10, "2777778H"),
        (1e300, "99999999H"),
    ],
)
def test_timeouts_are_sent_rounded_up_in_eight_digits(seconds: float, text: str) -> None:
    """Trial 66; what is zero or less is never sent, and infinity has no header."""
    assert timeout_text(math.ceil(seconds * 1000)) == text
