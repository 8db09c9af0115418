"""A scripted server of raw HTTP/2 frames, and the network that leads to it.

The network is what ``open_channel`` dials through; each dial gives one peer::

    network = Network()
    async with open_channel(network.connect, authority="peer") as channel:
        peer = network.peers[0]
        request = await peer.request()
        await peer.answer(request.stream, b"reply")

A peer greets (SETTINGS) by itself when it is dialled, unless told otherwise;
everything else is up to the test.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

import hpack
import trio
import trio.testing

from sepp_trio.transport import Method
from sepp_trio.transport._frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    goaway,
    rst_stream,
    settings,
    window_update,
)
from sepp_trio.transport._headers import TABLE_OFF, encode_block

ECHO: Method[bytes, bytes] = Method("/test.Service/Echo", lambda b: b, lambda b: b)
HEADS = [(":status", "200"), ("content-type", "application/grpc")]


def message(payload: bytes, flag: int = 0) -> bytes:
    """A gRPC message with its prefix."""
    return struct.pack(">BI", flag, len(payload)) + payload


@dataclass(frozen=True)
class Frame:
    """A frame that came in."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def code(self) -> int:
        """The error code of a RST_STREAM or GOAWAY."""
        return int.from_bytes(self.payload[-4:] if self.kind == RST_STREAM else self.payload[4:8])


@dataclass
class Request:
    """A call that came in, complete."""

    stream: int
    headers: dict[str, str]
    body: bytearray = field(default_factory=bytearray)

    @property
    def message(self) -> bytes:
        return bytes(self.body[5:])


class Peer:
    """The server's end of one connection."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.frames: list[Frame] = []
        """Every frame that was read, in order."""
        self.requests: dict[int, Request] = {}
        self.answer_pings = True
        self.give_credit = True
        self._buffer = bytearray()
        self._send_lock = trio.Lock()
        self._preface_read = False
        self._decoder = hpack.Decoder()

    async def greet(self, values: Mapping[int, int] | None = None) -> None:
        """Send the first SETTINGS and allow the connection plenty of data."""
        await self.send(settings(dict(values or {})))

    async def send(self, *frames: bytes) -> None:
        async with self._send_lock:
            await self.stream.send_all(b"".join(frames))

    async def frame(self) -> Frame | None:
        """The next frame, None at the end.

        SETTINGS and PING are acknowledged, DATA is given back as credit.
        """
        while True:
            if not self._preface_read and len(self._buffer) >= len(PREFACE):
                assert self._buffer.startswith(PREFACE)
                del self._buffer[: len(PREFACE)]
                self._preface_read = True
            if self._preface_read and len(self._buffer) >= 9:
                size = int.from_bytes(self._buffer[:3])
                if len(self._buffer) >= 9 + size:
                    break
            try:
                data = await self.stream.receive_some(65536)
            except trio.BrokenResourceError:
                return None
            if not data:
                return None
            self._buffer += data
        kind, flags = self._buffer[3], self._buffer[4]
        number = int.from_bytes(self._buffer[5:9])
        got = Frame(kind, flags, number, bytes(self._buffer[9 : 9 + size]))
        del self._buffer[: 9 + size]
        self.frames.append(got)
        assert kind <= CONTINUATION
        with suppress(trio.BrokenResourceError):
            if kind == SETTINGS and not flags & ACK:
                await self.send(frame(SETTINGS, ACK, 0))
            elif kind == PING and not flags & ACK and self.answer_pings:
                await self.send(frame(PING, ACK, 0, got.payload))
            elif kind == DATA and got.payload and self.give_credit:
                credit = len(got.payload)
                await self.send(window_update(0, credit), window_update(number, credit))
        if kind == HEADERS:
            assert flags & END_HEADERS
            fields = self._decoder.decode(got.payload, raw=True)
            named = {name.decode(): value.decode() for name, value in fields}
            self.requests[number] = Request(number, named)
        elif kind == DATA:
            self.requests[number].body += got.payload
        return got

    async def request(self) -> Request:
        """The next complete request; everything else is passed over."""
        while (got := await self.frame()) is not None:
            if got.kind in (HEADERS, DATA) and got.flags & END_STREAM:
                return self.requests[got.stream]
        raise EOFError("the client left")

    async def wait_for(self, kind: int) -> Frame:
        """The next frame of this type."""
        while (got := await self.frame()) is not None:
            if got.kind == kind:
                return got
        raise EOFError("the client left")

    async def read_to_end(self) -> None:
        """Read until the client closes."""
        while await self.frame() is not None:
            pass

    async def answer(self, stream: int, payload: bytes = b"") -> None:
        """A usual answer."""
        await self.send(answer(stream, payload))

    async def refuse(self, stream: int, status: int, text: str = "") -> None:
        """A trailers-only error."""
        await self.send(headers(stream, [*HEADS, *status_fields(status, text)], END_STREAM))

    async def serve(self) -> None:
        """Answer every request with its own message, until the client leaves."""
        try:
            while True:
                request = await self.request()
                await self.answer(request.stream, request.message)
        except (EOFError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def close(self) -> None:
        await trio.aclose_forcefully(self.stream)

    def count(self, kind: int) -> int:
        """How many frames of a type were read."""
        return sum(got.kind == kind for got in self.frames)


def headers(stream: int, fields: Sequence[tuple[str, str]], flags: int = 0) -> bytes:
    """A HEADERS frame; its block says that no table is used, as the client asked."""
    return frame(HEADERS, flags | END_HEADERS, stream, TABLE_OFF + encode_block(fields))


def data(stream: int, payload: bytes, flags: int = 0) -> bytes:
    """DATA frames with these bytes."""
    parts = [payload[at : at + 16384] for at in range(0, len(payload), 16384)] or [b""]
    last = len(parts) - 1
    return b"".join(
        frame(DATA, flags if i == last else 0, stream, part) for i, part in enumerate(parts)
    )


def status_fields(status: int | str, text: str = "") -> list[tuple[str, str]]:
    return [("grpc-status", str(status)), *([("grpc-message", text)] if text else [])]


def answer(stream: int, payload: bytes = b"") -> bytes:
    """Headers, one message and trailers."""
    return (
        headers(stream, HEADS)
        + data(stream, message(payload))
        + headers(stream, status_fields(0), END_STREAM)
    )


class Network:
    """Where a channel dials; ``peers`` are the connections made, oldest first.

    ``on_dial`` may be set: awaited with each new peer before the dial
    succeeds; it may raise OSError to refuse.  Without it the peer greets.
    """

    def __init__(
        self,
        on_dial: Callable[[Peer], Awaitable[None]] | None = None,
        *,
        pair: Callable[[], tuple[trio.abc.Stream, trio.abc.Stream]] | None = None,
    ) -> None:
        self.peers: list[Peer] = []
        self.dials = 0
        self.on_dial = on_dial or Peer.greet
        self._pair = pair or trio.testing.memory_stream_pair
        self._changed = trio.Event()

    async def __aenter__(self) -> Self:
        """Needed only with sockets: the peers' ends are closed at the end."""
        return self

    async def __aexit__(self, *_: object) -> None:
        for peer in self.peers:
            await peer.close()

    async def connect(self) -> trio.abc.Stream:
        self.dials += 1
        ours, theirs = self._pair()
        peer = Peer(theirs)
        await self.on_dial(peer)
        self.peers.append(peer)
        self._changed.set()
        self._changed = trio.Event()
        return ours

    async def peer(self, number: int) -> Peer:
        """The connection of this number, as soon as it is made."""
        while len(self.peers) <= number:
            await self._changed.wait()
        return self.peers[number]

    async def serve(self, number: int = 0) -> None:
        """Let every peer from this number on echo."""
        async with trio.open_nursery() as nursery:
            while True:
                nursery.start_soon((await self.peer(number)).serve)
                number += 1


def socket_pair() -> tuple[trio.abc.Stream, trio.abc.Stream]:
    """Connected sockets that hold little: a peer that does not read is felt soon."""
    ours, theirs = trio.socket.socketpair()
    for end in (ours, theirs):
        end.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_SNDBUF, 8192)
    return trio.SocketStream(ours), trio.SocketStream(theirs)


async def refuse_dial(peer: Peer) -> None:
    """For :attr:`Network.on_dial`: nobody listens."""
    raise ConnectionRefusedError(111, "Connection refused")


__all__ = [
    "ACK",
    "DATA",
    "ECHO",
    "END_HEADERS",
    "END_STREAM",
    "GOAWAY",
    "HEADERS",
    "HEADS",
    "PING",
    "RST_STREAM",
    "SETTINGS",
    "WINDOW_UPDATE",
    "Frame",
    "Network",
    "Peer",
    "Request",
    "answer",
    "data",
    "frame",
    "goaway",
    "headers",
    "message",
    "refuse_dial",
    "rst_stream",
    "settings",
    "socket_pair",
    "status_fields",
    "window_update",
]
