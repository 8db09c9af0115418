"""A hand-made HTTP/2 client, for what no gRPC client would send or show.

Synchronous, on a plain socket, frame by frame: it sends what it is told, right or wrong, and
keeps every frame that comes back.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from hpack import Decoder, Encoder
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
Headers = list[tuple[str, str]]


def message(body: bytes, flag: int = 0) -> bytes:
    """A length-prefixed gRPC message."""
    return struct.pack(">BL", flag, len(body)) + body


@dataclass
class Reply:
    """What came back on one stream."""

    headers: list[Headers] = field(default_factory=list)
    data: bytes = b""
    data_sizes: list[int] = field(default_factory=list)
    ended: bool = False
    reset: int | None = None

    @property
    def status(self) -> str | None:
        """The gRPC status, from trailers or from a trailers-only answer."""
        return dict(self.headers[-1]).get("grpc-status") if self.headers else None

    @property
    def http_status(self) -> str:
        return dict(self.headers[0])[":status"]


class Wire:
    """One connection."""

    def __init__(
        self,
        address: str,
        *,
        settings: dict[int, int] | None = None,
        preface: bool = True,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        host, _, port = address.rpartition(":")
        self.address = address
        self._socket = socket.create_connection((host, int(port)), 15)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            try:
                self._socket = tls.wrap_socket(self._socket, server_hostname=host)
            except OSError:
                self._socket.close()
                raise
        self._buffer = b""
        self._encoder = Encoder()
        self._decoder = Decoder()
        table = (settings or {}).get(SettingsFrame.HEADER_TABLE_SIZE)
        if table is not None:
            self._decoder.max_allowed_table_size = table
        self._block = b""
        self._next = 1
        self.frames: list[Any] = []
        self.replies: dict[int, Reply] = {}
        self.goaways: list[GoAwayFrame] = []
        self.pongs: list[bytes] = []
        self.pings: list[bytes] = []
        self.settings: SettingsFrame | None = None
        self.settings_acks = 0
        self.closed = False
        self.answers_pings = True
        if preface:
            self.raw(PREFACE + SettingsFrame(0, settings or {}).serialize())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._socket.close()

    @property
    def tls(self) -> ssl.SSLSocket:
        """The TLS side of the connection."""
        assert isinstance(self._socket, ssl.SSLSocket)
        return self._socket

    # --- sending

    def raw(self, data: bytes) -> None:
        """Send bytes as they are; a server that has hung up already is no error here."""
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            self.closed = True

    def send(self, *frames: Frame) -> None:
        """Send frames in one write."""
        self.raw(b"".join(frame.serialize() for frame in frames))

    def block(self, headers: Sequence[tuple[str, str]]) -> bytes:
        """A header block."""
        return self._encoder.encode(headers)

    def stream(self) -> int:
        """The next stream id."""
        number = self._next
        self._next += 2
        return number

    def request(self, path: str, **changes: str | None) -> Headers:
        """The headers of a call; a change replaces one, None leaves it out (`_` is `-`)."""
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": self.address,
            "te": "trailers",
            "content-type": "application/grpc",
        }
        for name, value in changes.items():
            key = name.replace("_", "-")
            key = f":{key}" if f":{key}" in headers else key
            if value is None:
                del headers[key]
            else:
                headers[key] = value
        return list(headers.items())

    def frames_of_call(
        self, path: str, body: bytes = b"", *, stream: int | None = None, **changes: str | None
    ) -> list[Frame]:
        """The frames of a whole call; `body` is what the DATA frames hold."""
        number = self.stream() if stream is None else stream
        headers = HeadersFrame(number, self.block(self.request(path, **changes)))
        headers.flags.add("END_HEADERS")
        frames: list[Frame] = [headers]
        pieces = [body[n : n + 16384] for n in range(0, len(body), 16384)] or [b""]
        frames += [DataFrame(number, piece) for piece in pieces]
        frames[-1].flags.add("END_STREAM")
        return frames

    def start(self, path: str, body: bytes = b"", **changes: str | None) -> int:
        """Send a whole call; its stream."""
        frames = self.frames_of_call(path, body, stream=None, **changes)
        self.send(*frames)
        return frames[0].stream_id

    def call(self, path: str, body: bytes = b"", **changes: str | None) -> Reply:
        """Send a whole call and wait for its answer."""
        return self.answer(self.start(path, body, **changes))

    # --- receiving

    def answer(self, stream: int, within: float = 15.0) -> Reply:
        """Wait until a stream has ended."""
        self.until(lambda: self.reply(stream).ended or self.reply(stream).reset is not None, within)
        return self.reply(stream)

    def reply(self, stream: int) -> Reply:
        """What has come on a stream so far."""
        return self.replies.setdefault(stream, Reply())

    def until(self, done: Callable[[], bool], within: float = 15.0) -> None:
        """Read until `done`; AssertionError if it takes longer, or the connection ends first."""
        deadline = time.monotonic() + within
        while not done():
            left = deadline - time.monotonic()
            assert left > 0, f"not within {within} s; frames: {self.frames[-8:]}"
            assert not self.closed, f"the connection ended; frames: {self.frames[-8:]}"
            self._read(left)

    def until_closed(self, within: float = 15.0) -> None:
        """Read until the server has closed the connection."""
        deadline = time.monotonic() + within
        while not self.closed:
            left = deadline - time.monotonic()
            assert left > 0, f"still open after {within} s; frames: {self.frames[-8:]}"
            self._read(left)

    def listen(self, seconds: float) -> None:
        """Read whatever comes within so long."""
        deadline = time.monotonic() + seconds
        while not self.closed and (left := deadline - time.monotonic()) > 0:
            self._read(left)

    def _read(self, timeout: float) -> None:
        self._socket.settimeout(max(timeout, 0.001))
        try:
            data = self._socket.recv(1 << 16)
        except TimeoutError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self.closed = True
            return
        self._buffer += data
        while len(self._buffer) >= 9:
            frame, length = Frame.parse_frame_header(memoryview(self._buffer[:9]))
            if len(self._buffer) < 9 + length:
                return
            frame.parse_body(memoryview(self._buffer[9 : 9 + length]))
            self._buffer = self._buffer[9 + length :]
            self._take(frame)

    def _take(self, frame: Any) -> None:
        self.frames.append(frame)
        if isinstance(frame, (HeadersFrame, ContinuationFrame)):
            self._block += frame.data
            if "END_HEADERS" in frame.flags:
                decoded = [(str(k), str(v)) for k, v in self._decoder.decode(self._block)]
                self._block = b""
                self.reply(frame.stream_id).headers.append(decoded)
        elif isinstance(frame, DataFrame):
            self.reply(frame.stream_id).data += frame.data
            self.reply(frame.stream_id).data_sizes.append(len(frame.data))
        elif isinstance(frame, RstStreamFrame):
            self.reply(frame.stream_id).reset = frame.error_code
        elif isinstance(frame, GoAwayFrame):
            self.goaways.append(frame)
        elif isinstance(frame, SettingsFrame):
            if "ACK" in frame.flags:
                self.settings_acks += 1
            else:
                self.settings = self.settings or frame
                self.send(SettingsFrame(0, flags=["ACK"]))
        elif isinstance(frame, PingFrame):
            if "ACK" in frame.flags:
                self.pongs.append(frame.opaque_data)
            else:
                self.pings.append(frame.opaque_data)
                if self.answers_pings:
                    self.pong(frame.opaque_data)
        if "END_STREAM" in frame.flags:
            self.reply(frame.stream_id).ended = True

    def pong(self, data: bytes) -> None:
        """Answer a PING."""
        self.send(PingFrame(0, data, flags=["ACK"]))
