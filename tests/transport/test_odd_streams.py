"""Callables to dial with that give what is no stream, or one that misbehaves."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from sepp_trio.transport import CallError, DialError, open_channel, tcp_connector

from .peer import ECHO, Network, Peer


class Odd(trio.abc.Stream):
    """A stream whose methods may be replaced by errors."""

    def __init__(self, inner: trio.abc.Stream, **faults: Exception) -> None:
        self._inner = inner
        self._faults = faults
        self.closed = False

    def _fail(self, method: str) -> None:
        if method in self._faults:
            raise self._faults[method]

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self._fail("send_all")
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        self._fail("receive_some")
        return await self._inner.receive_some(max_bytes)

    async def aclose(self) -> None:
        self.closed = True
        self._fail("aclose")
        await self._inner.aclose()


def no_stream(stream: trio.abc.Stream) -> Any:
    return object()


def odd(*methods: str) -> Callable[[trio.abc.Stream], trio.abc.Stream]:
    return lambda stream: Odd(stream, **{name: RuntimeError(f"odd {name}") for name in methods})


CASES = [
    (no_stream, "connect\\(\\) gave a object, which is no trio.abc.Stream"),
    (odd("send_all"), "RuntimeError: odd send_all"),
    (odd("receive_some"), "RuntimeError: odd receive_some"),
    (odd("receive_some", "aclose"), "RuntimeError: odd receive_some"),
]


@pytest.mark.parametrize(("wrap", "reason"), CASES)
async def test_a_dial_that_gives_something_odd_is_a_dial_error(
    autojump_clock: trio.testing.MockClock, wrap: Callable[[trio.abc.Stream], Any], reason: str
) -> None:
    network = Network(Peer.greet)

    async def connect() -> Any:
        return wrap(await network.connect())

    with pytest.raises(DialError, match=reason):
        async with open_channel(connect, authority="peer"):
            raise AssertionError("connected")


@pytest.mark.parametrize(("wrap", "reason"), CASES)
async def test_something_odd_at_a_later_dial_costs_the_calls_that_waited(
    autojump_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
    wrap: Callable[[trio.abc.Stream], Any],
    reason: str,
) -> None:
    network = Network(Peer.greet)
    dials = 0

    async def connect() -> Any:
        nonlocal dials
        dials += 1
        stream = await network.connect()
        return wrap(stream) if dials == 2 else stream

    async with open_channel(connect, authority="peer") as channel:
        await network.peers[0].close()
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(CallError, match=reason):
            await channel.unary(ECHO, b"")
        nursery.start_soon(network.serve)
        assert await channel.unary(ECHO, b"again") == b"again"


async def test_a_stream_that_does_not_close_cleanly_is_logged(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    network = Network(Peer.greet)

    async def connect() -> trio.abc.Stream:
        return Odd(await network.connect(), aclose=RuntimeError("odd aclose"))

    async with open_channel(connect, authority="peer"):
        pass
    assert "could not be closed: RuntimeError: odd aclose" in caplog.text


async def test_a_tls_context_that_cannot_be_used_leaves_no_socket_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = []

    async def dial(*_: Any) -> trio.abc.Stream:
        opened.append(Odd(trio.testing.memory_stream_pair()[0]))
        return opened[-1]

    monkeypatch.setattr(trio, "open_tcp_stream", dial)
    connect = tcp_connector("localhost", 1, tls=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
    with pytest.raises(DialError, match="Cannot create a client socket"):
        async with open_channel(connect, authority="peer"):
            raise AssertionError("connected")
    assert opened[0].closed
