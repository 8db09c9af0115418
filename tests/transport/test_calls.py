"""Calls of a channel: replies, errors, deadlines, cancellation."""

from __future__ import annotations

import weakref

import pytest
import trio
from grpclib.const import Status

from sepp_trio.transport import CallError, ChannelClosed, Method, PendingCall, open_channel

from .peer import (
    DATA,
    ECHO,
    HEADERS,
    RST_STREAM,
    Network,
    Peer,
    goaway,
    rst_stream,
    socket_pair,
    window_update,
)


async def test_a_call_returns_the_reply(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = Network()
    nursery.start_soon(network.serve)
    async with open_channel(
        network.connect,
        authority="peer:1",
        user_agent="tester/1",
        metadata=[("authorization", "Bearer x")],
    ) as channel:
        with trio.testing.assert_checkpoints():
            assert await channel.unary(ECHO, b"hello", timeout=7) == b"hello"
        assert channel.statistics().state == "ready"
        assert channel.statistics().calls_open == 0
    assert channel.statistics().state == "closed"
    [request] = network.peers[0].requests.values()
    assert request.headers == {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/test.Service/Echo",
        ":authority": "peer:1",
        "te": "trailers",
        "content-type": "application/grpc",
        "user-agent": "tester/1",
        "authorization": "Bearer x",
        "grpc-timeout": "7000m",
    }


async def test_a_servers_status_becomes_a_call_error(nursery: trio.Nursery) -> None:
    network = Network()

    async def serve() -> None:
        peer = await network.peer(0)
        request = await peer.request()
        await peer.refuse(request.stream, 5, "no such %25 job: %E2%82%AC")

    nursery.start_soon(serve)
    async with open_channel(network.connect, authority="peer") as channel:
        with pytest.raises(CallError) as caught:
            await channel.unary(ECHO, b"")
    assert caught.value.status is Status.NOT_FOUND
    assert caught.value.message == "no such % job: €"
    assert caught.value.origin == "server"
    assert not caught.value.unprocessed
    assert str(caught.value) == "NOT_FOUND: no such % job: €"


async def test_an_answer_that_does_not_decode_is_an_internal_error(
    nursery: trio.Nursery,
) -> None:
    def decode(data: bytes) -> bytes:
        raise ValueError("no such field")

    network = Network()
    nursery.start_soon(network.serve)
    async with open_channel(network.connect, authority="peer") as channel:
        with pytest.raises(CallError, match="no such field") as caught:
            await channel.unary(Method("/s/m", lambda b: b, decode), b"")
        assert caught.value.status is Status.INTERNAL
        assert caught.value.origin == "local"
        assert isinstance(caught.value.__cause__, ValueError)
        assert await channel.unary(ECHO, b"next") == b"next"


async def test_a_started_call_tells_its_callback_once(nursery: trio.Nursery) -> None:
    network = Network()
    results: list[object] = []
    async with open_channel(network.connect, authority="peer") as channel:
        channel.start_unary(ECHO, b"a", lambda *got: results.append(got), timeout=None)
        assert results == []
        nursery.start_soon(network.serve)
        await trio.testing.wait_all_tasks_blocked()
        assert results == [(b"a", None)]


async def test_a_cancelled_started_call_is_silent(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = Network()
    results: list[object] = []
    async with open_channel(network.connect, authority="peer") as channel:
        unsent = channel.start_unary(ECHO, b"a", lambda *got: results.append(got), timeout=5)
        unsent.cancel()
        unsent.cancel()
        sent = channel.start_unary(ECHO, b"b", lambda *got: results.append(got), timeout=5)
        await trio.testing.wait_all_tasks_blocked()
        sent.cancel()
        await trio.sleep(1)
        nursery.start_soon(network.serve)
        assert await channel.unary(ECHO, b"c") == b"c"
    assert results == []
    peer = network.peers[0]
    assert [r.message for r in peer.requests.values()] == [b"b", b"c"]
    assert [(f.stream, f.code) for f in peer.frames if f.kind == RST_STREAM] == [(1, 8)]


async def test_a_started_call_is_recalled_only_while_nothing_of_it_has_left(
    nursery: trio.Nursery,
) -> None:
    network = Network(lambda peer: peer.greet({3: 1}))
    results: list[object] = []
    async with open_channel(network.connect, authority="peer") as channel:
        calls = [
            channel.start_unary(ECHO, name, lambda *got: results.append(got), timeout=5)
            for name in (b"a", b"b", b"c")
        ]
        await trio.testing.wait_all_tasks_blocked()
        assert [call.recall() for call in calls] == [False, True, True]
        assert not calls[1].recall()  # that is done
        nursery.start_soon(network.serve)
        assert await channel.unary(ECHO, b"d") == b"d"
        assert not calls[0].recall()
    assert results == [(b"a", None)]
    assert [r.message for r in network.peers[0].requests.values()] == [b"a", b"d"]


@pytest.mark.parametrize("how", ["cancel", "recall"])
async def test_a_callback_of_a_failed_dial_may_undo_a_call_that_fails_with_it(how: str) -> None:
    async def refuse(peer: Peer) -> None:
        raise ConnectionRefusedError("nobody is there")

    network = Network()
    results: list[str] = []
    async with open_channel(network.connect, authority="peer") as channel:
        network.on_dial = refuse
        await (await network.peer(0)).close()

        def failed(_: object, error: CallError | None) -> None:
            assert error is not None
            results.append(error.origin)
            getattr(second, how)()

        channel.start_unary(ECHO, b"a", failed, timeout=5)
        second = channel.start_unary(ECHO, b"b", failed, timeout=5)
        third = channel.start_unary(ECHO, b"c", failed, timeout=5)
        await trio.sleep(0.1)
        await trio.testing.wait_all_tasks_blocked()
        assert results == ["connection", "connection"]
        assert third.done


async def test_a_callback_may_start_the_next_call(nursery: trio.Nursery) -> None:
    network = Network()
    nursery.start_soon(network.serve)
    left, done = 5, trio.Event()
    async with open_channel(network.connect, authority="peer") as channel:

        def again(reply: bytes | None, error: CallError | None) -> None:
            nonlocal left
            assert error is None
            left -= 1
            if left:
                channel.start_unary(ECHO, b"", again, timeout=None)
            else:
                done.set()

        channel.start_unary(ECHO, b"", again, timeout=None)
        await done.wait()


async def test_a_scope_over_before_the_call_cancels_it_unsent(nursery: trio.Nursery) -> None:
    network = Network()
    nursery.start_soon(network.serve)
    async with open_channel(network.connect, authority="peer") as channel:
        with trio.CancelScope() as scope:
            scope.cancel()
            await channel.unary(ECHO, b"never")
        assert scope.cancelled_caught
        assert await channel.unary(ECHO, b"x") == b"x"
    assert network.peers[0].count(HEADERS) == 1
    assert network.peers[0].count(RST_STREAM) == 0


async def test_after_a_cancel_at_any_moment_the_connection_serves_on(
    nursery: trio.Nursery,
) -> None:
    """Trial 7: nothing is left of a cancelled call, wherever it was."""
    network = Network(lambda peer: peer.greet({3: 5}))
    nursery.start_soon(network.serve)
    async with open_channel(network.connect, authority="peer") as channel:
        for passes in range(40):
            for _ in range(5):
                async with trio.open_nursery() as callers:
                    callers.start_soon(channel.unary, ECHO, b"x" * 70_000)
                    for _ in range(passes):
                        await trio.lowlevel.checkpoint()
                    callers.cancel_scope.cancel()
        # As many as the peer allows, at once.
        with trio.fail_after(5):
            async with trio.open_nursery() as callers:
                for _ in range(5):
                    callers.start_soon(channel.unary, ECHO, b"y")
        statistics = channel.statistics()
        assert (statistics.calls_open, statistics.calls_waiting) == (0, 0)
        assert statistics.connections == 1
        await trio.testing.wait_all_tasks_blocked()
    peer = network.peers[0]
    opened = {f.stream for f in peer.frames if f.kind == HEADERS}
    ended = {f.stream for f in peer.frames if f.kind == RST_STREAM or (f.flags & 1 and f.kind < 2)}
    assert opened <= ended


async def test_unsent_calls_are_dropped_not_reset() -> None:
    """The real server closes a connection for calls that come with their reset."""
    network = Network()
    async with open_channel(network.connect, authority="peer") as channel:
        await trio.testing.wait_all_tasks_blocked()
        before = channel.statistics().bytes_sent
        for _ in range(50):
            channel.start_unary(ECHO, b"", lambda *_: None, timeout=None).cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert channel.statistics().bytes_sent == before
    await network.peers[0].read_to_end()
    assert {f.kind for f in network.peers[0].frames} == {4, 8}


async def test_a_reset_keeps_its_distance_from_the_call(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """Servers take calls that are reset in the read that brought them for an attack."""
    network = Network(lambda peer: peer.greet({3: 100}))
    async with open_channel(network.connect, authority="peer") as channel:
        peer = network.peers[0]
        for _ in range(100):
            with trio.CancelScope() as scope:
                nursery.start_soon(_soon, scope)
                await channel.unary(ECHO, b"")
        assert channel.statistics().calls_open == 0
        for _ in range(100):
            await peer.request()
        # One is answered meanwhile: nobody listens, and it needs no reset.
        await peer.answer(1)
        await peer.refuse(3, 5)
        await peer.send(rst_stream(5, 2))
        await trio.testing.wait_all_tasks_blocked()
        assert peer.count(RST_STREAM) == 0
        nursery.start_soon(peer.serve)
        await trio.sleep(1)
        resets = [f.stream for f in peer.frames if f.kind == RST_STREAM]
        assert resets == list(range(7, 201, 2))
        assert await channel.unary(ECHO, b"x") == b"x"


async def _soon(scope: trio.CancelScope) -> None:
    for _ in range(3):
        await trio.lowlevel.checkpoint()
    scope.cancel()


async def test_withdrawn_calls_are_forgotten_with_their_connection(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network = Network()
    results: list[object] = []
    async with open_channel(network.connect, authority="peer") as channel:
        for ending in (goaway(0, 0), None):
            call = channel.start_unary(ECHO, b"", lambda *r: results.append(r), timeout=None)
            await trio.testing.wait_all_tasks_blocked()
            call.cancel()
            if ending:
                await network.peers[-1].send(ending)
            else:
                await network.peers[-1].close()
            await trio.testing.wait_all_tasks_blocked()
            await channel.wait_ready()
        call = channel.start_unary(ECHO, b"", lambda *r: results.append(r), timeout=None)
        await trio.testing.wait_all_tasks_blocked()
        call.cancel()
    assert results == []


async def test_a_closed_channel_refuses_and_fails_what_is_left(nursery: trio.Nursery) -> None:
    network = Network(lambda peer: peer.greet({3: 1}))
    results: list[CallError | None] = []
    async with open_channel(network.connect, authority="peer") as channel:
        for _ in range(2):
            channel.start_unary(ECHO, b"", lambda _, error: results.append(error), timeout=9)
        await trio.testing.wait_all_tasks_blocked()
    assert [type(error) for error in results] == [ChannelClosed, ChannelClosed]
    assert sorted(error.unprocessed for error in results if error) == [False, True]
    with pytest.raises(ChannelClosed), trio.testing.assert_checkpoints():
        await channel.unary(ECHO, b"")
    with pytest.raises(ChannelClosed):
        channel.start_unary(ECHO, b"", lambda *_: None, timeout=1)
    with pytest.raises(ChannelClosed):
        await channel.wait_ready()


async def test_errors_of_the_body_come_out_bare(nursery: trio.Nursery) -> None:
    network = Network()
    with pytest.raises(KeyError):
        async with open_channel(network.connect, authority="peer"):
            raise KeyError("mine")
    with trio.CancelScope() as scope:
        async with open_channel(network.connect, authority="peer"):
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_the_connection_outlives_the_cancelled_body(nursery: trio.Nursery) -> None:
    network = Network()
    nursery.start_soon(network.serve)
    reply = b""
    with trio.CancelScope() as scope:
        async with open_channel(network.connect, authority="peer") as channel:
            scope.cancel()
            try:
                await trio.sleep_forever()
            finally:
                with trio.move_on_after(1, shield=True):
                    reply = await channel.unary(ECHO, b"farewell")
    assert reply == b"farewell"


async def test_urgent_calls_go_first_when_streams_are_scarce(nursery: trio.Nursery) -> None:
    network = Network(lambda peer: peer.greet({3: 1}))
    async with open_channel(network.connect, authority="peer") as channel:
        for name, urgent in ((b"1", False), (b"2", False), (b"3", False), (b"u", True)):
            channel.start_unary(ECHO, name, lambda *_: None, timeout=None, urgent=urgent)
            await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(network.serve)
        assert await channel.unary(ECHO, b"4") == b"4"
    order = [r.message for r in network.peers[0].requests.values()]
    assert order == [b"1", b"u", b"2", b"3", b"4"]


async def test_an_urgent_call_overtakes_a_long_upload() -> None:
    network = Network(lambda peer: peer.greet({4: 1 << 24}), pair=socket_pair)
    async with network, open_channel(network.connect, authority="peer") as channel:
        peer = network.peers[0]
        await peer.send(window_update(0, 1 << 24))
        channel.start_unary(ECHO, b"x" * (1 << 20), lambda *_: None, timeout=None)
        await peer.wait_for(DATA)
        channel.start_unary(ECHO, b"u", lambda *_: None, timeout=None, urgent=True)
        request = await peer.request()
        assert request.message == b"u"
        assert len(peer.requests[1].body) < 300_000


async def test_a_started_call_may_be_reset_and_still_take_its_answer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network = Network()
    results: list[object] = []

    def start() -> PendingCall:
        return channel.start_unary(ECHO, b"", lambda *got: results.append(got), timeout=None)

    async with open_channel(network.connect, authority="peer") as channel:
        peer = network.peers[0]
        start().reset()  # not sent at all
        call = start()
        request = await peer.request()
        call.reset()
        assert (await peer.wait_for(RST_STREAM)).stream == request.stream
        await peer.answer(request.stream, b"crossed")
        await trio.testing.wait_all_tasks_blocked()
        call.reset()
        call.cancel()
        assert results == [(b"crossed", None)]


async def test_what_a_finished_call_held_is_let_go(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """Its deadline is far away, and the timer still knows the call."""

    class Reply:
        pass

    def callback(reply: Reply | None, error: CallError | None) -> None:
        held.append(weakref.ref(reply))

    network = Network()
    nursery.start_soon(network.serve)
    held: list[object] = []
    make: Method[bytes, Reply] = Method("/s/m", lambda b: b, lambda _: Reply())
    async with open_channel(network.connect, authority="peer") as channel:
        held.append(weakref.ref(await channel.unary(make, b"x", timeout=3600)))
        channel.start_unary(make, b"y", callback, timeout=3600)
        held.append(weakref.ref(callback))
        del callback
        await trio.testing.wait_all_tasks_blocked()
        assert [ref() for ref in held] == [None] * 3  # type: ignore[operator]
