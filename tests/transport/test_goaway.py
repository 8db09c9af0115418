"""GOAWAY: promised calls end, others are repeated elsewhere."""

from __future__ import annotations

import pytest
import trio
from grpclib.const import Status

from sepp_trio.transport import CallError, open_channel

from .peer import ECHO, PING, Network, Peer, frame, goaway, refuse_dial

LAST = 2**31 - 1
DRAIN = b"draining"


@pytest.mark.parametrize("two_steps", [False, True])
async def test_a_call_in_flight_survives_a_drain(
    two_steps: bool, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """Trial 2: it is answered where it is, the next call goes to a new connection."""
    network = Network()

    async def drain() -> None:
        peer = await network.peer(0)
        request = await peer.request()
        if two_steps:
            await peer.send(goaway(LAST, 0), frame(PING, 0, 0, DRAIN))
            assert (await peer.wait_for(PING)).payload == DRAIN
        await peer.send(goaway(1, 0))
        await trio.sleep(0.05)
        await peer.answer(request.stream, b"a job")
        await peer.read_to_end()
        await peer.close()

    nursery.start_soon(drain)
    async with open_channel(network.connect, authority="peer") as channel:
        assert await channel.unary(ECHO, b"reserve", long_poll=True) == b"a job"
        nursery.start_soon(network.serve, 1)
        assert await channel.unary(ECHO, b"ack") == b"ack"
        assert channel.statistics().connections == 2
        await trio.testing.wait_all_tasks_blocked()
        # The client left the old one as soon as its last call was over.
        assert channel.statistics().connections_open == 1


async def test_calls_made_while_a_connection_drains_go_to_the_next(
    nursery: trio.Nursery,
) -> None:
    network = Network()
    async with open_channel(network.connect, authority="peer") as channel:
        old = network.peers[0]
        replies: list[object] = []
        channel.start_unary(ECHO, b"old", lambda *got: replies.append(got), timeout=None)
        request = await old.request()
        await old.send(goaway(LAST, 0))
        await trio.testing.wait_all_tasks_blocked()
        assert channel.statistics().state == "idle"
        nursery.start_soon(network.serve, 1)
        assert await channel.unary(ECHO, b"new") == b"new"
        assert channel.statistics().connections_open == 2
        await old.answer(request.stream, b"late")
        await trio.testing.wait_all_tasks_blocked()
        assert replies == [(b"late", None)]


async def test_calls_above_the_last_stream_are_repeated_in_order(
    nursery: trio.Nursery,
) -> None:
    """Trial 45, transport half: GOAWAY proves them unprocessed."""
    network = Network()
    results: list[object] = []
    async with open_channel(network.connect, authority="peer") as channel:
        for name in (b"1", b"2", b"3", b"4"):
            channel.start_unary(ECHO, name, lambda *got: results.append(got), timeout=9)
        old = network.peers[0]
        for _ in range(4):
            await old.request()
        await old.send(goaway(1, 0))
        await old.answer(1, b"1")
        await old.close()
        nursery.start_soon((await network.peer(1)).serve)
        await trio.testing.wait_all_tasks_blocked()
        assert results == [(name, None) for name in (b"1", b"2", b"3", b"4")]
    assert [r.message for r in network.peers[1].requests.values()] == [b"2", b"3", b"4"]


async def test_the_second_step_of_a_drain_moves_calls_to_the_connection_already_made(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = Network()
    results: list[object] = []
    async with open_channel(network.connect, authority="peer") as channel:
        old = network.peers[0]
        for name in (b"1", b"2", b"3"):
            channel.start_unary(ECHO, name, lambda *got: results.append(got), timeout=None)
            await old.request()
        await old.send(goaway(LAST, 0))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(network.serve, 1)
        await channel.wait_ready()
        assert channel.statistics().connections == 2
        await old.send(goaway(1, 0))
        start = trio.current_time()
        await trio.testing.wait_all_tasks_blocked()
        assert results == [(b"2", None), (b"3", None)]
        assert trio.current_time() == start


async def test_a_call_below_the_last_stream_is_not_repeated(nursery: trio.Nursery) -> None:
    """Trial 45, transport half: it may have been processed."""
    network = Network()
    async with open_channel(network.connect, authority="peer") as channel:

        async def drop() -> None:
            peer = network.peers[0]
            await peer.request()
            await peer.send(goaway(1, 0))
            await peer.close()

        nursery.start_soon(drop)
        with pytest.raises(CallError) as caught:
            await channel.unary(ECHO, b"commit")
        error = caught.value
        assert (error.status, error.origin) == (Status.UNAVAILABLE, "connection")
        assert not error.unprocessed
        assert len(network.peers) == 1


async def test_a_repeated_call_keeps_its_deadline(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = Network()

    async def serve() -> None:
        old = await network.peer(0)
        await old.request()
        await trio.sleep(2)
        await old.send(goaway(0, 0))
        await (await network.peer(1)).request()

    nursery.start_soon(serve)
    async with open_channel(network.connect, authority="peer") as channel:
        with pytest.raises(CallError) as caught:
            await channel.unary(ECHO, b"", timeout=5)
        assert caught.value.status is Status.DEADLINE_EXCEEDED
    assert network.peers[1].requests[1].headers["grpc-timeout"] == "3000m"


async def test_a_server_that_only_says_goodbye_is_not_dialled_in_a_hot_loop(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def greet_and_leave(peer: Peer) -> None:
        await peer.greet()
        if len(network.peers) > 0:
            await peer.send(goaway(0, 0))

    network = Network(greet_and_leave)
    async with open_channel(network.connect, authority="peer") as channel:
        await network.peers[0].close()
        with pytest.raises(CallError):
            await channel.unary(ECHO, b"", timeout=10)
        assert network.dials < 60


async def test_without_a_next_connection_repeated_calls_fail_as_unprocessed(
    nursery: trio.Nursery,
) -> None:
    network = Network()
    async with open_channel(network.connect, authority="peer") as channel:
        network.on_dial = refuse_dial

        async def leave() -> None:
            await network.peers[0].request()
            await network.peers[0].send(goaway(0, 0))

        nursery.start_soon(leave)
        with pytest.raises(CallError, match="Connection refused") as caught:
            await channel.unary(ECHO, b"")
        assert caught.value.unprocessed
