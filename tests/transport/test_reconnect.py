"""Lost connections, and how a channel comes back."""

from __future__ import annotations

import logging

import pytest
import trio
from grpclib.const import Status

from sepp_trio.transport import CallError, DialError, open_channel

from .peer import (
    ECHO,
    Network,
    Peer,
    refuse_dial,
    settings,
    socket_pair,
)


async def test_calls_end_when_the_connection_dies_wherever_they_wait(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """Trial 1: one holds the only stream, two wait for it."""
    network = Network(lambda peer: peer.greet({3: 1}))
    errors: list[CallError] = []

    async with open_channel(network.connect, authority="peer") as channel:

        async def call() -> None:
            with pytest.raises(CallError) as caught:
                await channel.unary(ECHO, b"")
            errors.append(caught.value)

        async with trio.open_nursery() as callers:
            for _ in range(3):
                callers.start_soon(call)
            await trio.testing.wait_all_tasks_blocked()
            assert channel.statistics().calls_open == 1
            assert channel.statistics().calls_waiting == 2
            network.on_dial = refuse_dial
            await network.peers[0].close()
            callers.cancel_scope.deadline = trio.current_time() + 1
        assert {error.status for error in errors} == {Status.UNAVAILABLE}
        assert {error.origin for error in errors} == {"connection"}
        # Those that had not begun were not processed.
        assert sorted(error.unprocessed for error in errors) == [False, True, True]
        network.on_dial = Peer.greet
        nursery.start_soon(network.serve)
        assert await channel.unary(ECHO, b"again") == b"again"


async def test_calls_that_had_not_begun_move_to_the_next_connection(
    nursery: trio.Nursery,
) -> None:
    network = Network(lambda peer: peer.greet({3: 1}))
    results: list[object] = []
    async with open_channel(network.connect, authority="peer") as channel:
        for name in (b"a", b"b", b"c"):
            channel.start_unary(ECHO, name, lambda *got: results.append(got), timeout=None)
        await network.peers[0].request()
        await network.peers[0].close()
        nursery.start_soon((await network.peer(1)).serve)
        await trio.testing.wait_all_tasks_blocked()
        assert results[1:] == [(b"b", None), (b"c", None)]


@pytest.mark.parametrize("what", ["no window", "blocked socket"])
async def test_a_call_whose_message_is_stuck_ends_with_the_connection(what: str) -> None:
    """Trial 1, the other two waits."""
    values = {4: 0} if what == "no window" else {4: 1 << 24}
    network = Network(lambda peer: peer.greet(values), pair=socket_pair)
    async with network, open_channel(network.connect, authority="peer") as channel:
        network.on_dial = refuse_dial

        async def call() -> None:
            with pytest.raises(CallError) as caught:
                await channel.unary(ECHO, b"x" * 500_000)
            assert caught.value.status is Status.UNAVAILABLE

        with trio.fail_after(5):
            async with trio.open_nursery() as callers:
                callers.start_soon(call)
                callers.start_soon(call)
                await trio.testing.wait_all_tasks_blocked()
                await network.peers[0].close()


async def test_the_first_calls_share_one_dial(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """Trial 41."""

    async def slow(peer: Peer) -> None:
        await trio.sleep(0.1)
        await peer.greet()

    network = Network()
    nursery.start_soon(network.serve)
    replies: list[bytes] = []
    async with open_channel(network.connect, authority="peer") as channel:
        network.on_dial = slow
        await network.peers[0].close()
        await trio.testing.wait_all_tasks_blocked()
        scope = trio.CancelScope()

        async def call(number: int) -> None:
            with scope if number == 0 else trio.CancelScope():
                replies.append(await channel.unary(ECHO, bytes([number])))

        async with trio.open_nursery() as callers:
            for number in range(20):
                callers.start_soon(call, number)
            await trio.sleep(0.05)
            scope.cancel()
        assert sorted(replies) == [bytes([number]) for number in range(1, 20)]
        assert network.dials == 2
        assert channel.statistics().connections_open == 1
    assert channel.statistics().connections_open == 0


async def test_calls_while_down_fail_with_the_dial_and_do_not_slow_later_ones(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """Trials 41 and 42."""
    network = Network()
    nursery.start_soon(network.serve)
    async with open_channel(network.connect, authority="peer") as channel:
        network.on_dial = refuse_dial
        await network.peers[0].close()
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(30):
            start = trio.current_time()
            with pytest.raises(CallError) as caught:
                await channel.unary(ECHO, b"")
            assert caught.value.status is Status.UNAVAILABLE
            assert caught.value.unprocessed
            assert trio.current_time() - start <= 0.5
        statistics = channel.statistics()
        assert statistics.failed_dials == 30
        assert (
            statistics.last_dial_error == "ConnectionRefusedError: [Errno 111] Connection refused"
        )
        network.on_dial = Peer.greet
        start = trio.current_time()
        assert await channel.unary(ECHO, b"back") == b"back"
        assert trio.current_time() - start <= 0.5
        assert channel.statistics().last_dial_error is None


async def test_nobody_dials_without_work(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = Network()
    async with open_channel(network.connect, authority="peer") as channel:
        await network.peers[0].close()
        await trio.sleep(60)
        assert network.dials == 1
        assert channel.statistics().state == "idle"


async def test_wait_ready_dials_until_it_works(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = Network()
    async with open_channel(network.connect, authority="peer") as channel:
        with trio.testing.assert_checkpoints():
            await channel.wait_ready()
        network.on_dial = refuse_dial
        await network.peers[0].close()
        await trio.testing.wait_all_tasks_blocked()
        ready = trio.Event()

        async def wait() -> None:
            await channel.wait_ready()
            ready.set()

        async with trio.open_nursery() as waiters:
            waiters.start_soon(wait)
            waiters.start_soon(wait)
            await trio.sleep(10)
            assert not ready.is_set()
            assert channel.statistics().state == "connecting"
            assert 20 <= network.dials <= 60
            network.on_dial = Peer.greet
            back = trio.current_time()
        assert trio.current_time() - back <= 0.5
        # A waiter that gives up leaves no dialling behind.
        network.on_dial = refuse_dial
        await network.peers[1].close()
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(1):
            await channel.wait_ready()
        await trio.sleep(1)
        dials = network.dials
        await trio.sleep(10)
        assert network.dials == dials


async def test_a_dial_bounds_the_wait_for_settings(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A draining server accepts and stays silent."""

    async def silent(peer: Peer) -> None:
        pass

    network = Network(silent)
    start = trio.current_time()
    with pytest.raises(DialError, match="no HTTP/2 settings from the server within 5 s"):
        async with open_channel(network.connect, authority="peer"):
            raise AssertionError
    assert trio.current_time() - start == pytest.approx(5)
    assert await network.peers[0].stream.receive_some(1 << 16)
    assert not await network.peers[0].stream.receive_some(1 << 16)


async def test_a_dial_bounds_the_connect_callable(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def never() -> trio.abc.Stream:
        await trio.sleep_forever()
        raise AssertionError

    with pytest.raises(DialError, match="no connection within 2 s"):
        async with open_channel(never, authority="peer", connect_timeout=2):
            raise AssertionError


async def test_a_cancelled_open_leaves_no_connection() -> None:
    async def silent(peer: Peer) -> None:
        pass

    network = Network(silent)
    with trio.move_on_after(0.01) as scope:
        async with open_channel(network.connect, authority="peer"):
            raise AssertionError
    assert scope.cancelled_caught
    await network.peers[0].read_to_end()


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP/1"),
        (b"HTTP/1", "HTTP/1"),
        (b"\x15\x03\x03\0\x02\x02\x46", "TLS"),
        (b"SSH-2.0-OpenSSH_9.9\r\n", "SSH"),
        (b"220 mail ESMTP ready\r\n", "does not speak HTTP/2"),
        (b"\0\0\0\x04\x01\0\0\0\0", "does not speak HTTP/2"),
        (settings({5: 1}), "MAX_FRAME_SIZE"),
        (b"", "closed the connection"),
    ],
)
async def test_a_port_that_speaks_something_else_is_named(first: bytes, reason: str) -> None:
    async def speak(peer: Peer) -> None:
        if first:
            await peer.send(first)
        await peer.stream.send_eof()  # type: ignore[attr-defined]

    network = Network(speak)
    with pytest.raises(DialError, match=reason):
        async with open_channel(network.connect, authority="peer"):
            raise AssertionError


async def test_a_peer_that_breaks_off_in_the_handshake_is_a_dial_error() -> None:
    network = Network(Peer.close)
    with pytest.raises(DialError, match="broke the connection"):
        async with open_channel(network.connect, authority="peer"):
            raise AssertionError


async def test_a_reconnect_is_logged(
    caplog: pytest.LogCaptureFixture, nursery: trio.Nursery
) -> None:
    network = Network()
    nursery.start_soon(network.serve)
    with caplog.at_level(logging.INFO, "sepp_trio.transport"):
        async with open_channel(network.connect, authority="peer") as channel:
            await channel.unary(ECHO, b"")
            await network.peers[0].close()
            await channel.unary(ECHO, b"")
    assert "the server closed the connection" in caplog.text
