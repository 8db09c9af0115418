"""Signs of life: when they are asked for, and what happens without them."""

from __future__ import annotations

import logging

import pytest
import trio
from grpclib.const import Status

from sepp_trio.transport import CallError, open_channel

from .peer import ECHO, PING, Network, Peer, goaway, refuse_dial, socket_pair


async def test_calls_on_a_silently_dead_link_fail_and_the_next_dials(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """Trial 31: the peer neither answers nor closes."""
    network = Network()
    start = trio.current_time()
    errors: list[CallError] = []

    async with open_channel(
        network.connect, authority="peer", keepalive_interval=0.2, keepalive_timeout=0.2
    ) as channel:

        async def call(long_poll: bool) -> None:
            with pytest.raises(CallError) as caught:
                await channel.unary(ECHO, b"", timeout=30, long_poll=long_poll)
            errors.append(caught.value)

        async with trio.open_nursery() as callers:
            callers.start_soon(call, True)
            callers.start_soon(call, False)
        assert trio.current_time() - start <= 0.6
        assert [error.status for error in errors] == [Status.UNAVAILABLE] * 2
        assert "no sign of life" in errors[0].message
        nursery.start_soon(network.serve, 1)
        assert await channel.unary(ECHO, b"new") == b"new"
        assert channel.statistics().connections_open == 1


async def test_a_dead_link_with_a_full_socket_is_given_up_as_well() -> None:
    """Trial 31 with a writer that is blocked: nobody waits for the old socket."""
    network = Network(lambda peer: peer.greet({4: 1 << 24}), pair=socket_pair)
    async with (
        network,
        open_channel(
            network.connect, authority="peer", keepalive_interval=0.1, keepalive_timeout=0.1
        ) as channel,
    ):
        network.on_dial = refuse_dial
        with trio.fail_after(10), pytest.raises(CallError, match="no sign of life"):
            await channel.unary(ECHO, b"x" * 500_000)
        await trio.testing.wait_all_tasks_blocked()
        assert channel.statistics().connections_open == 0


async def test_an_idle_link_is_asked_every_interval(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = Network()
    nursery.start_soon(network.serve)
    async with open_channel(network.connect, authority="peer") as channel:
        await trio.sleep(65)
        assert 4 <= network.peers[0].count(PING) <= 6
        assert channel.statistics().connections == 1


async def test_a_link_with_traffic_is_not_asked(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """Trial 32: a poll every five seconds is life enough."""
    network = Network()

    async def serve() -> None:
        peer = await network.peer(0)
        while True:
            request = await peer.request()
            await trio.sleep(5)
            await peer.answer(request.stream)

    async with open_channel(network.connect, authority="peer") as channel:
        nursery.start_soon(serve)
        end = trio.current_time() + 300
        while trio.current_time() < end:
            await channel.unary(ECHO, b"", timeout=20, long_poll=True)
        assert network.peers[0].count(PING) == 0
        nursery.cancel_scope.cancel()


async def test_too_many_pings_doubles_the_interval_for_good(
    autojump_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Trial 32: thrown off, the channel slows down, says so, and comes back."""
    network = Network()

    async def strict(number: int) -> None:
        peer = await network.peer(number)
        for _ in range(3):
            await peer.wait_for(PING)
        await peer.send(goaway(0, 11, b"too_many_pings"))
        await peer.close()

    nursery.start_soon(strict, 0)
    async with open_channel(network.connect, authority="peer", keepalive_interval=1) as channel:
        await trio.sleep(20)
        assert channel.statistics().keepalive_interval == 2
        assert "too_many_pings" in caplog.text
        nursery.start_soon(strict, 1)
        await channel.wait_ready()
        start = trio.current_time()
        await trio.sleep(60)
        assert channel.statistics().keepalive_interval == 4
        assert network.peers[1].count(PING) == 3
        assert trio.current_time() - start >= 3 * 2
    assert caplog.records[0].levelno == logging.WARNING


async def test_an_unanswered_call_is_asked_after_two_seconds(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = Network()
    async with open_channel(network.connect, authority="peer") as channel:
        peer = network.peers[0]
        peer.answer_pings = False
        nursery.start_soon(peer.read_to_end)
        await trio.sleep(1)
        network.on_dial = refuse_dial
        start = trio.current_time()
        with pytest.raises(CallError, match="no sign of life"):
            await channel.unary(ECHO, b"", timeout=60)
        assert trio.current_time() - start == pytest.approx(2 + 4)


async def test_a_long_poll_that_is_unanswered_is_no_sign_of_death(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = Network()
    async with open_channel(network.connect, authority="peer") as channel:
        nursery.start_soon(network.peers[0].read_to_end)
        with pytest.raises(CallError) as caught:
            await channel.unary(ECHO, b"", timeout=9, long_poll=True)
        assert caught.value.status is Status.DEADLINE_EXCEEDED
        assert network.peers[0].count(PING) == 0


async def test_a_slow_call_behind_a_long_poll_is_watched_too(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = Network()
    async with open_channel(network.connect, authority="peer") as channel:
        nursery.start_soon(network.peers[0].read_to_end)
        channel.start_unary(ECHO, b"", lambda *_: None, timeout=None, long_poll=True)
        await trio.sleep(5)
        channel.start_unary(ECHO, b"", lambda *_: None, timeout=None)
        await trio.sleep(2.5)
        assert network.peers[0].count(PING) == 1
        # It answers, so it lives; the call stays, and is asked about again.
        await trio.sleep(20)
        assert network.peers[0].count(PING) > 1
        assert channel.statistics().connections == 1
        assert channel.statistics().calls_open == 2


async def test_a_peer_that_pings_and_does_not_read_cannot_fill_the_memory() -> None:
    network = Network(pair=socket_pair)
    async with (
        network,
        open_channel(
            network.connect, authority="peer", keepalive_interval=20, keepalive_timeout=20
        ) as channel,
    ):
        peer: Peer = network.peers[0]
        ping = b"\0\0\x08\x06\0\0\0\0\0" + b"x" * 8
        received = 0
        with trio.move_on_after(0.15):
            while True:
                await peer.send(ping * 1000)
        received = channel.statistics().bytes_received
        assert received < 1_000_000
