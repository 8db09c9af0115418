"""A client made of bare HTTP/2 frames, for saying to a server what no library would say.

It shares nothing with the package: frames are packed here, header blocks go
through ``hpack``.  It has no tasks; it reads when a test asks it to.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import hpack
import trio

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS = 1, 1, 4
BIG_WINDOW = 2**31 - 1 - 65535


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def settings(values: Mapping[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(struct.pack(">HI", *item) for item in values.items()))


def window_update(stream: int, increment: int) -> bytes:
    return frame(WINDOW, 0, stream, struct.pack(">I", increment))


def reset(stream: int, code: int = 8) -> bytes:
    return frame(RST, 0, stream, struct.pack(">I", code))


def ping(payload: bytes = b"01234567", *, ack: bool = False) -> bytes:
    return frame(PING, ACK if ack else 0, 0, payload)


def goaway(last: int = 0, code: int = 0) -> bytes:
    return frame(GOAWAY, 0, 0, struct.pack(">II", last, code))


def prefixed(message: bytes, flag: int = 0) -> bytes:
    """A gRPC message on the wire."""
    return struct.pack(">BI", flag, len(message)) + message


def data(stream: int, payload: bytes, *, end: bool = True, size: int = 16384) -> bytes:
    """DATA frames of at most ``size`` bytes each."""
    pieces = [payload[at : at + size] for at in range(0, len(payload), size)] or [b""]
    last = len(pieces) - 1
    return b"".join(
        frame(DATA, END_STREAM if end and at == last else 0, stream, piece)
        for at, piece in enumerate(pieces)
    )


@dataclass
class Answer:
    """What has come on one stream so far."""

    headers: list[tuple[str, str]] = field(default_factory=list)
    data: bytes = b""
    trailers: list[tuple[str, str]] | None = None
    ended: bool = False
    reset: int | None = None

    @property
    def over(self) -> bool:
        return self.ended or self.reset is not None

    @property
    def last_block(self) -> dict[str, str]:
        return dict(self.headers if self.trailers is None else self.trailers)

    @property
    def status(self) -> int | None:
        value = self.last_block.get("grpc-status")
        return None if value is None else int(value)

    @property
    def message(self) -> str | None:
        return self.last_block.get("grpc-message")

    @property
    def messages(self) -> list[bytes]:
        """The gRPC messages in the data."""
        out, at = [], 0
        while at < len(self.data):
            size = int.from_bytes(self.data[at + 1 : at + 5], "big")
            out.append(self.data[at + 5 : at + 5 + size])
            at += 5 + size
        return out


class RawClient:
    """One connection, seen frame by frame."""

    def __init__(self, stream: trio.abc.Stream, *, polite: bool = True) -> None:
        self.stream = stream
        self.polite = polite
        """Acknowledges settings and pings, and gives back credit for data."""
        self.answers: dict[int, Answer] = {}
        self.settings: list[dict[int, int]] = []
        self.settings_acks = 0
        self.goaways: list[tuple[int, int, bytes]] = []
        self.pings: list[bytes] = []
        self.pongs: list[bytes] = []
        self.credit: dict[int, int] = {}
        self.writes: list[bytes] = []
        """What each receive brought: one write of the server, on a memory stream."""
        self.eof = False
        self.next_id = 1
        self._encoder = hpack.Encoder()
        self._decoder = hpack.Decoder()
        self._buffer = b""
        self._block: tuple[int, int, bytes] | None = None

    async def start(self, values: Mapping[int, int] | None = None, *, credit: int = 0) -> None:
        """Send the preface and wait for the server's settings and its acknowledgement."""
        opening = PREFACE + settings(values or {})
        await self.send(opening + (window_update(0, credit) if credit else b""))
        await self.until(lambda: bool(self.settings) and self.settings_acks > 0)

    async def send(self, *parts: bytes) -> None:
        await self.stream.send_all(b"".join(parts))

    # --- requests

    def new_id(self) -> int:
        self.next_id += 2
        return self.next_id - 2

    def block(self, fields: Iterable[tuple[str, str]]) -> bytes:
        """An HPACK block in which nothing is added to the table."""
        self._encoder.header_table_size = 0
        return self._encoder.encode([hpack.NeverIndexedHeaderTuple(*item) for item in fields])

    def head(
        self,
        stream: int,
        path: str,
        *extra: tuple[str, str],
        end: bool = False,
        without: Iterable[str] = (),
        method: str = "POST",
    ) -> bytes:
        """HEADERS of a gRPC request."""
        fields = [
            (":method", method),
            (":scheme", "http"),
            (":path", path),
            (":authority", "test"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            *extra,
        ]
        block = self.block(item for item in fields if item[0] not in without)
        return frame(HEADERS, END_HEADERS | (END_STREAM if end else 0), stream, block)

    def call(self, stream: int, path: str, message: bytes = b"", *extra: tuple[str, str]) -> bytes:
        """The frames of one whole call."""
        return self.head(stream, path, *extra) + data(stream, prefixed(message))

    async def request(self, path: str, message: bytes = b"", *extra: tuple[str, str]) -> Answer:
        """Make one call and wait for its end."""
        stream = self.new_id()
        await self.send(self.call(stream, path, message, *extra))
        return await self.answer(stream)

    # --- answers

    async def answer(self, stream: int) -> Answer:
        """Read until the stream is over (or the connection is)."""
        await self.until(lambda: stream in self.answers and self.answers[stream].over)
        return self.answers[stream]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Read until something holds; the end of the connection before that is a failure."""
        while not condition():
            if not await self.pump():
                assert condition(), f"the server closed first: {self.goaways}"

    async def drained(self) -> None:
        """Read to the end of the connection."""
        while await self.pump():
            pass

    async def pump(self) -> bool:
        """Read once; false at the end of the connection."""
        try:
            received = bytes(await self.stream.receive_some(65536))
        except trio.BrokenResourceError:
            received = b""
        if not received:
            self.eof = True
            return False
        self.writes.append(received)
        self._buffer += received
        replies = []
        while len(self._buffer) >= 9:
            size = int.from_bytes(self._buffer[:3], "big")
            if len(self._buffer) < 9 + size:
                break
            kind, flags, stream = struct.unpack(">BBI", self._buffer[3:9])
            payload = self._buffer[9 : 9 + size]
            self._buffer = self._buffer[9 + size :]
            replies.append(self._take(kind, flags, stream, payload))
        if self.polite and any(replies):
            # If the server has gone, the next read says so.
            with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self.send(*replies)
        return True

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        if kind == SETTINGS:
            if flags & ACK:
                self.settings_acks += 1
                return b""
            self.settings.append(dict(struct.iter_unpack(">HI", payload)))
            return frame(SETTINGS, ACK, 0)
        if kind == PING:
            (self.pongs if flags & ACK else self.pings).append(payload)
            return b"" if flags & ACK else ping(payload, ack=True)
        if kind == GOAWAY:
            last, code = struct.unpack(">II", payload[:8])
            self.goaways.append((last, code, payload[8:]))
        elif kind == WINDOW:
            self.credit[stream] = self.credit.get(stream, 0) + int.from_bytes(payload, "big")
        elif kind in (HEADERS, CONTINUATION):
            self._take_block(kind, flags, stream, payload)
        elif kind == RST:
            self._of(stream).reset = int.from_bytes(payload, "big")
        elif kind == DATA:
            answer = self._of(stream)
            answer.data += payload
            answer.ended |= bool(flags & END_STREAM)
            if payload:
                credit = window_update(0, len(payload))
                return credit if answer.over else credit + window_update(stream, len(payload))
        return b""

    def _take_block(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == HEADERS:
            self._block = (stream, flags, payload)
        else:
            assert self._block is not None
            self._block = (stream, self._block[1], self._block[2] + payload)
        if not flags & END_HEADERS:
            return
        _, first_flags, block = self._block
        fields = [(str(name), str(value)) for name, value in self._decoder.decode(block)]
        answer = self._of(stream)
        if answer.headers:
            answer.trailers = fields
        else:
            answer.headers = fields
        answer.ended |= bool(first_flags & END_STREAM)

    def _of(self, stream: int) -> Answer:
        return self.answers.setdefault(stream, Answer())
