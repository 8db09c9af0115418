"""Sockets without Trio's checkpoints: what is written and read, and what closing does to it."""

from __future__ import annotations

import itertools
import socket
import tempfile
from typing import cast

import pytest
import trio
import trio.testing

from sepp_trio.transport import CallError, open_channel
from sepp_trio.transport._frames import INITIAL_WINDOW_SIZE
from sepp_trio.transport._link import Link
from sepp_trio.transport._pipe import SocketPipe, pipe_of

from .peer import ECHO, SETTINGS, Network, Peer, answer, socket_pair, window_update


def sockets() -> tuple[trio.SocketStream, trio.SocketStream]:
    ours, theirs = socket_pair()
    assert isinstance(ours, trio.SocketStream)
    assert isinstance(theirs, trio.SocketStream)
    return ours, theirs


class MadeUp(trio.socket.SocketType):
    """As trio.socket.set_custom_socket_factory may bring them."""

    def __init__(self, number: int) -> None:
        self._number = number

    @property
    def type(self) -> int:
        return socket.SOCK_STREAM

    def fileno(self) -> int:
        return self._number

    def setsockopt(self, *_: object) -> None:
        pass


async def test_only_real_sockets_are_written_at_once() -> None:
    ours, theirs = sockets()
    async with ours, theirs:
        assert pipe_of(ours).writes_at_once
        memory, _ = trio.testing.memory_stream_pair()
        assert not pipe_of(memory).writes_at_once
        assert pipe_of(memory).write_now(b"x") == 0
        with tempfile.TemporaryFile() as file:
            assert not pipe_of(trio.SocketStream(MadeUp(file.fileno()))).writes_at_once
        await ours.aclose()
        assert not pipe_of(ours).writes_at_once


async def test_what_does_not_fit_waits_and_arrives_in_order() -> None:
    ours, theirs = sockets()
    data = bytes(range(256)) * 4000
    async with ours, theirs, trio.open_nursery() as nursery:
        nursery.start_soon(pipe_of(ours).send_all, data)
        got = bytearray()
        while len(got) < len(data):
            got += await pipe_of(theirs).receive(65536)
        assert got == data


async def test_a_full_socket_takes_nothing_at_once() -> None:
    ours, theirs = sockets()
    async with ours, theirs:
        pipe = pipe_of(ours)
        while pipe.write_now(bytes(65536)):
            pass
        assert pipe.write_now(b"x") == 0


async def test_the_end_of_a_stream_is_read_as_nothing() -> None:
    ours, theirs = sockets()
    async with ours, theirs:
        await theirs.send_eof()
        assert await pipe_of(ours).receive(100) == b""


async def test_a_broken_socket_raises_as_a_stream_does() -> None:
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        ours = await trio.open_tcp_stream(*listener.socket.getsockname())
        theirs = await listener.accept()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await theirs.aclose()
        pipe = pipe_of(ours)
        with pytest.raises(trio.BrokenResourceError) as caught:
            await pipe.receive(100)
        assert isinstance(caught.value.__cause__, ConnectionResetError)
        with pytest.raises(trio.BrokenResourceError) as caught:
            await pipe.send_all(b"x")
        assert isinstance(caught.value.__cause__, BrokenPipeError)
        await ours.aclose()


async def test_a_closed_socket_is_neither_read_nor_written_under_its_old_number() -> None:
    ours, theirs = sockets()
    async with theirs:
        pipe = pipe_of(ours)
        await ours.aclose()
        with pytest.raises(trio.ClosedResourceError):
            pipe.write_now(b"x")
        with pytest.raises(trio.ClosedResourceError):
            await pipe.receive(100)


async def test_a_close_ends_the_wait_for_bytes(nursery: trio.Nursery) -> None:
    ours, theirs = sockets()
    async with theirs:
        pipe, errors = pipe_of(ours), []

        async def read() -> None:
            try:
                await pipe.receive(100)
            except trio.ClosedResourceError as error:
                errors.append(error)

        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        await ours.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert len(errors) == 1


async def test_a_close_between_the_wake_up_and_the_read_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = sockets()
    async with theirs:
        pipe = cast("SocketPipe", pipe_of(ours))

        async def wait_readable(_: int) -> None:
            await ours.aclose()  # by a task that ran just before

        monkeypatch.setattr(trio.lowlevel, "wait_readable", wait_readable)
        with pytest.raises(trio.ClosedResourceError):
            await pipe.receive(100)


async def test_a_wake_up_for_nothing_waits_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = sockets()
    async with ours, theirs:
        wait_readable = trio.lowlevel.wait_readable
        waits = []

        async def too_early(number: int) -> None:
            waits.append(number)
            if len(waits) == 1:
                return
            await theirs.send_all(b"late")
            await wait_readable(number)

        monkeypatch.setattr(trio.lowlevel, "wait_readable", too_early)
        assert await pipe_of(ours).receive(100) == b"late"


class Writes(trio.abc.Instrument):
    """Counts how often the writer of a link had a turn."""

    def __init__(self) -> None:
        self.turns = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.turns += task.name.endswith("Link._write")


async def test_calls_that_come_alone_need_no_turn_of_the_writer() -> None:
    writes = Writes()
    async with Network(pair=socket_pair) as network, trio.open_nursery() as nursery:
        nursery.start_soon(network.serve)
        async with open_channel(network.connect, authority="peer:1") as channel:
            await channel.unary(ECHO, b"first")
            await trio.testing.wait_all_tasks_blocked()
            trio.lowlevel.add_instrument(writes)
            for number in range(20):
                assert await channel.unary(ECHO, b"%d" % number) == b"%d" % number
            assert writes.turns == 0
            # Those that come together leave together, also when the next are made.
            for _ in range(3):
                async with trio.open_nursery() as callers:
                    for _ in range(20):
                        callers.start_soon(channel.unary, ECHO, b"x")
            trio.lowlevel.remove_instrument(writes)
            assert 0 < writes.turns < 20
        nursery.cancel_scope.cancel()


async def test_what_a_socket_did_not_take_at_once_follows() -> None:
    async with Network(pair=socket_pair) as network, trio.open_nursery() as nursery:
        nursery.start_soon(network.serve)
        async with open_channel(network.connect, authority="peer:1") as channel:
            for _ in range(3):
                await channel.unary(ECHO, b"small")
                big = bytes(range(256)) * 2000
                assert await channel.unary(ECHO, big) == big
        nursery.cancel_scope.cancel()


async def test_a_socket_that_breaks_at_once_is_a_lost_connection() -> None:
    async with Network(pair=socket_pair) as network, trio.open_nursery() as nursery:
        async with open_channel(network.connect, authority="peer:1") as channel:
            peer = await network.peer(0)
            nursery.start_soon(peer.serve)
            await channel.unary(ECHO, b"x")
            await trio.testing.wait_all_tasks_blocked()
            stream = peer.stream
            assert isinstance(stream, trio.SocketStream)
            # The peer is gone, and the reader has not had its turn since.
            stream.socket.close()
            with pytest.raises(CallError, match="the connection was lost: BrokenPipe"):
                await channel.unary(ECHO, b"y")
        nursery.cancel_scope.cancel()


def sizes_written(link: Link) -> list[int]:
    """The sizes of what is written at once from now on."""
    write, sizes = link._pipe.write_now, []

    def counted(data: bytes | bytearray | memoryview) -> int:
        sizes.append(len(data))
        return write(data)

    link._pipe.write_now = counted  # type: ignore[method-assign]
    return sizes


async def test_calls_made_by_answers_of_one_read_leave_in_one_write() -> None:
    async with Network(pair=socket_pair) as network, trio.open_nursery() as nursery:
        async with open_channel(network.connect, authority="peer:1") as channel:
            peer = await network.peer(0)
            await peer.wait_for(SETTINGS)
            replies: list[bytes | None] = []
            complete = trio.Event()

            def note(reply: bytes | None, _: CallError | None) -> None:
                replies.append(reply)
                if len(replies) == 4:
                    complete.set()

            def again(reply: bytes | None, error: CallError | None) -> None:
                note(reply, error)
                channel.start_unary(ECHO, b"again", note, timeout=9)

            for text in (b"a", b"b"):
                channel.start_unary(ECHO, text, again, timeout=9)
            requests = [await peer.request() for _ in range(2)]
            link = channel._dispatcher.link
            assert link is not None
            sizes = sizes_written(link)
            link.at_once = True  # as after calls that came one by one
            await peer.send(*(answer(request.stream, request.message) for request in requests))
            nursery.start_soon(peer.serve)
            with trio.fail_after(5):
                await complete.wait()
            assert len(sizes) == 1
            assert replies == [b"a", b"b", b"again", b"again"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("lone", [True, False])
async def test_what_is_started_in_one_write_leaves_in_one(lone: bool) -> None:
    async with Network(pair=socket_pair) as network, trio.open_nursery() as nursery:
        nursery.start_soon(network.serve)
        async with open_channel(network.connect, authority="peer:1") as channel:
            await channel.unary(ECHO, b"first")
            await trio.testing.wait_all_tasks_blocked()
            link = channel._dispatcher.link
            assert link is not None
            sizes = sizes_written(link)
            replies: list[bytes | None] = []

            def note(reply: bytes | None, _: CallError | None) -> None:
                replies.append(reply)

            for turn in range(1, 4):
                link.at_once = lone
                with channel.in_one_write:
                    for text in (b"a", b"b"):
                        channel.start_unary(ECHO, text, note, timeout=9)
                    assert len(sizes) == turn - 1
                assert len(sizes) == (turn if lone else turn - 1)
                await trio.testing.wait_all_tasks_blocked(0.01)
                assert len(sizes) == turn
                assert replies == [b"a", b"b"] * turn
                with channel.in_one_write:
                    pass
                await trio.testing.wait_all_tasks_blocked(0.01)
                assert len(sizes) == turn
        nursery.cancel_scope.cancel()


async def test_in_one_write_waits_for_the_connection_like_any_call() -> None:
    async with Network() as network, trio.open_nursery() as nursery:
        async with open_channel(network.connect, authority="peer:1") as channel:
            await (await network.peer(0)).close()
            await trio.testing.wait_all_tasks_blocked()
            answered = trio.Event()
            with channel.in_one_write:
                channel.start_unary(ECHO, b"a", lambda *_: answered.set(), timeout=9)
            nursery.start_soon(network.serve, 1)
            with trio.fail_after(5):
                await answered.wait()
        nursery.cancel_scope.cancel()


def roomy_pair() -> tuple[trio.abc.Stream, trio.abc.Stream]:
    ours, theirs = trio.socket.socketpair()
    return trio.SocketStream(ours), trio.SocketStream(theirs)


async def test_others_have_their_turn_between_the_writes_of_a_large_message() -> None:
    async def greet(peer: Peer) -> None:
        await peer.greet({INITIAL_WINDOW_SIZE: 2**20})
        await peer.send(window_update(0, 2**20))

    events = []
    async with Network(greet, pair=roomy_pair) as network, trio.open_nursery() as nursery:
        async with open_channel(network.connect, authority="peer:1") as channel:
            peer = await network.peer(0)
            nursery.start_soon(peer.serve)
            await channel.unary(ECHO, b"small")
            link = channel._dispatcher.link
            assert link is not None
            write = link._pipe.write_now

            def noted(data: bytes | bytearray | memoryview) -> int:
                events.append("write")
                return write(data)

            link._pipe.write_now = noted  # type: ignore[method-assign]

            async def other() -> None:
                while True:
                    events.append("other")
                    await trio.lowlevel.checkpoint()

            nursery.start_soon(other)
            await trio.lowlevel.checkpoint()
            big = bytes(range(256)) * 3000
            assert await channel.unary(ECHO, big) == big
        nursery.cancel_scope.cancel()
    runs = [len(list(run)) for event, run in itertools.groupby(events) if event == "write"]
    assert sum(runs) > 10
    # Trio takes the tasks of a turn in any order: two at the ends of two turns are neighbours.
    assert max(runs) < 4
