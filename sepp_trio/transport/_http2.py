"""HTTP/2 without I/O, as far as unary gRPC needs it: what both roles share.

A driver feeds the bytes it received with :meth:`Connection.feed` and writes
what :meth:`Connection.data_to_send` gives.  Calls are told what happened
through methods of their streams, synchronously, within ``feed``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ._credit import Credit
from ._frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_ALL,
    END_HEADERS,
    END_STREAM,
    FRAME_SIZE,
    GOAWAY,
    HEAD,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    PRIORITY_FIELDS,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Code,
    ConnectionFault,
    StreamFault,
    frame,
    goaway,
    parse_u32,
    rst_stream,
    window_update,
)
from ._sending import Queue, Stream

_MAX_BLOCK = 64 * 1024
_MAX_CONTINUATIONS = 8
_PIECE = 4096
"""Least bytes of a DATA frame that are worth taking before the rest of it is there."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Http2Config:
    """What a connection allows its peer.

    Windows are bytes that may be under way to us, for one stream and for the
    whole connection (at least 65535); ``max_message`` bounds one received gRPC message.
    For the server role: ``max_streams``, ``max_resets`` (calls reset in the
    read that brought them) and ``max_buffered`` (bytes of requests that are
    not complete).
    """

    stream_window: int = 4 * 1024 * 1024
    connection_window: int = 16 * 1024 * 1024
    max_message: int = 16 * 1024 * 1024
    max_streams: int = 1000
    max_resets: int = 20
    max_buffered: int = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Goaway:
    """What the peer said in GOAWAY."""

    last_stream: int
    code: int
    debug: bytes


class Connection(Credit):
    """Frames in, frames out: settings, windows, pings, goodbyes."""

    max_frame: ClassVar[int] = FRAME_SIZE
    """The largest payload of a frame that is taken."""

    def __init__(self, config: Http2Config, waiting: tuple[Queue, ...]) -> None:
        super().__init__(waiting)
        self.config = config
        self.goaway: Goaway | None = None
        """The peer's last GOAWAY: it takes no streams any more."""
        self.closed = False
        """A connection fault has ended it: nothing is read or begun any more."""
        self.last_pong = b""
        """Payload of the last PING that the peer acknowledged."""
        self._receive_window = config.connection_window
        # The beginning of a frame.
        self._rest = b""
        # Of a large DATA frame that is taken in pieces: stream, flags, bytes to come.
        self._cut = (0, 0, 0)
        # A header block under way: stream, flags, bytes and CONTINUATIONs so far.
        self._partial: tuple[int, int, bytes, int] | None = None

    # The driver's face ----------------------------------------------------

    def feed(self, data: bytes | bytearray) -> None:
        """Take bytes from the peer, in any pieces.

        Raises:
            ConnectionFault: the peer broke the protocol.  GOAWAY is ready to
                be written; write it, within a bound, and close.
        """
        if self.closed:
            return
        at = 0
        try:
            if self._rest:
                data = self._rest + data
            else:
                data = bytes(data)
                if self._cut[2]:
                    at = self._on_more_data(data)
            at = self._take_frames(data, at)
        except ConnectionFault as fault:
            self.fail(fault)
            raise
        self._rest = data[at:]
        self._fed()

    def _take_frames(self, data: bytes, at: int) -> int:
        """Handle all complete frames from ``at`` on; where the first that is not begins."""
        end = len(data)
        unpack = HEAD.unpack_from
        while end - at >= 9:
            high, low, kind, flags, number = unpack(data, at)
            start = at + 9
            stop = start + (high << 8 | low)
            if stop - start > self.max_frame:
                raise ConnectionFault(Code.FRAME_SIZE_ERROR, f"a frame of {stop - start} bytes")
            number &= 0x7FFFFFFF
            if self._partial is not None or not self.settings_received:
                self._check_order(kind, flags, number)
            try:
                if stop > end:
                    if kind != DATA or flags & PADDED or end - start < _PIECE:
                        break
                    self._cut = (number, flags, stop - end)
                    at = end
                    self._on_data(number, flags, stop - start, _piece(data, start, end))
                    break
                at = stop
                if kind == HEADERS and flags == END_HEADERS:
                    # A message that came whole and is as usual, or the frame alone.
                    at = self._take_whole(data, start, stop, number)
                    if not at:
                        at = stop
                        self._on_block(number, flags, data[start:stop])
                elif kind == DATA:
                    self._on_data(number, flags, stop - start, _piece(data, start, stop))
                elif kind == HEADERS and flags == END_ALL:
                    self._on_block(number, flags, data[start:stop])
                elif kind == HEADERS:
                    self._on_header_frame(number, flags, data[start:stop])
                else:
                    self._on_other(kind, flags, number, data[start:stop])
            except StreamFault as fault:
                self._on_stream_fault(number, fault)
        return at

    def ping(self, payload: bytes) -> None:
        """Send a PING of eight bytes; see :attr:`last_pong`."""
        self._control += frame(PING, 0, 0, payload)

    def fail(self, fault: ConnectionFault) -> None:
        """End the connection for this fault: GOAWAY is queued, nothing else is sent."""
        self.closed = True
        for sending, _ in self._lanes:
            sending.clear()
        self._control += goaway(self._last_peer_stream(), fault.code, fault.reason.encode())

    # For the roles ----------------------------------------------------------

    def _last_peer_stream(self) -> int:
        """The highest stream of the peer that we took up."""
        return 0

    def _fed(self) -> None:
        """All frames that were complete have been handled."""

    def _take_whole(self, data: bytes, start: int, stop: int, number: int) -> int:
        """Take all frames of a message in one step, if they are in ``data`` and as usual.

        ``start`` and ``stop`` are those of its header block.  Returns where the
        frames end; 0: nothing was done, they are to be taken one by one.
        """
        return 0

    def _on_block(self, number: int, flags: int, block: bytes) -> None:
        raise NotImplementedError

    def _on_body(self, stream: Stream, payload: bytes | memoryview, ended: bool) -> None:
        raise NotImplementedError

    def _on_reset(self, stream: Stream, code: int) -> None:
        raise NotImplementedError

    def _on_goaway(self, said: Goaway) -> None:
        raise NotImplementedError

    def _on_stream_fault(self, number: int, fault: StreamFault) -> None:
        """Reset a stream for what the peer did on it."""
        raise NotImplementedError

    def _forget(self, stream: Stream) -> None:
        """Take a stream out of the table and the queue."""
        self.streams.pop(stream.id, None)
        if not stream.local_ended:
            self._unqueue(stream)

    # Frames -----------------------------------------------------------------

    def _check_order(self, kind: int, flags: int, number: int) -> None:
        if self._partial is not None:
            if kind != CONTINUATION or number != self._partial[0]:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "a header block was interrupted")
        elif kind != SETTINGS or flags & ACK:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "the first frame was not SETTINGS")

    def _on_data(self, number: int, flags: int, size: int, payload: bytes | memoryview) -> None:
        """A DATA frame of this size has begun; ``payload`` may be only a piece of it."""
        # Credit for the connection is given back whoever the bytes are for:
        # those of cancelled calls would shrink the window for good.
        left = self._receive_window - size
        if left < 0:
            raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "more data than the window allows")
        full = self.config.connection_window
        if left < full >> 1:
            self._control += window_update(0, full - left)
            left = full
        self._receive_window = left
        whole = len(payload) == size
        if flags & PADDED:
            payload = _unpad(payload)
        stream = self.streams.get(number)
        if stream is None or stream.remote_ended:
            self._on_closed_stream(number, DATA)
            return
        left = stream.receive_window - size
        if left < 0:
            raise StreamFault(Code.FLOW_CONTROL_ERROR, "more data than the window allows")
        ended = flags & END_STREAM
        stream.receive_window = left
        if left < self.config.stream_window >> 1 and not ended and self._may_grow(stream):
            self._give_credit(stream)
        self._on_body(stream, payload, bool(ended) and whole)

    def _on_more_data(self, data: bytes) -> int:
        """The next piece of a DATA frame; where it ends."""
        number, flags, left = self._cut
        stop = min(left, len(data))
        left -= stop
        self._cut = (number, flags, left)
        stream = self.streams.get(number)
        if stream is not None and not stream.remote_ended:
            try:
                self._on_body(stream, _piece(data, 0, stop), bool(flags & END_STREAM) and not left)
            except StreamFault as fault:
                self._on_stream_fault(number, fault)
        return stop

    def _may_grow(self, stream: Stream) -> bool:
        """Whether the peer may send more on a stream than it was told so far."""
        return True

    def _give_credit(self, stream: Stream) -> None:
        full = self.config.stream_window
        self._control += window_update(stream.id, full - stream.receive_window)
        stream.receive_window = full

    def _on_header_frame(self, number: int, flags: int, payload: bytes) -> None:
        if flags & PADDED:
            payload = bytes(_unpad(payload))
        if flags & PRIORITY_FIELDS:
            if len(payload) < 5:
                raise ConnectionFault(Code.FRAME_SIZE_ERROR, "HEADERS without its fields")
            depends = int.from_bytes(payload[:4], "big") & 0x7FFFFFFF
            payload = payload[5:]
            if depends == number:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "a stream that depends on itself")
        if flags & END_HEADERS:
            self._on_block(number, flags, payload)
        else:
            self._partial = (number, flags, payload, 0)

    def _on_continuation(self, flags: int, payload: bytes) -> None:
        if self._partial is None:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        number, first_flags, block, count = self._partial
        block += payload
        if len(block) > _MAX_BLOCK or count >= _MAX_CONTINUATIONS:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "too_many_continuations")
        if flags & END_HEADERS:
            self._partial = None
            self._on_block(number, first_flags, block)
        else:
            self._partial = (number, first_flags, block, count + 1)

    def _on_other(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == WINDOW_UPDATE:
            self._on_window_update(number, parse_u32(payload) & 0x7FFFFFFF)
        elif kind == RST_STREAM:
            code = parse_u32(payload)
            stream = self.streams.get(number)
            if stream is None:
                self._on_closed_stream(number, RST_STREAM)
            else:
                self._on_reset(stream, code)
        elif kind == CONTINUATION:
            self._on_continuation(flags, payload)
        elif kind == PRIORITY:
            if number == 0:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "PRIORITY of the connection")
            if len(payload) != 5:
                raise StreamFault(Code.FRAME_SIZE_ERROR, "PRIORITY of a wrong length")
            if int.from_bytes(payload[:4], "big") & 0x7FFFFFFF == number:
                raise StreamFault(Code.PROTOCOL_ERROR, "a stream that depends on itself")
        elif kind == PUSH_PROMISE:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "PUSH_PROMISE")
        elif kind in (SETTINGS, PING, GOAWAY):
            if number != 0:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "a connection's frame on a stream")
            if kind == SETTINGS:
                self._on_settings(flags, payload)
            elif kind == PING:
                self._on_ping(flags, payload)
            elif len(payload) < 8:
                raise ConnectionFault(Code.FRAME_SIZE_ERROR, "GOAWAY of a wrong length")
            else:
                last = int.from_bytes(payload[:4], "big") & 0x7FFFFFFF
                said = Goaway(last, int.from_bytes(payload[4:8], "big"), payload[8:])
                self.goaway = said
                self._on_goaway(said)
        # Unknown types are to be ignored.

    def _on_ping(self, flags: int, payload: bytes) -> None:
        if len(payload) != 8:
            raise ConnectionFault(Code.FRAME_SIZE_ERROR, "PING of a wrong length")
        if flags & ACK:
            self.last_pong = payload
        else:
            self._control += frame(PING, ACK, 0, payload)

    def _reset(self, number: int, code: int) -> None:
        self._control += rst_stream(number, code)


def _piece(data: bytes, start: int, stop: int) -> bytes | memoryview:
    """A part of what was read: not copied if it is most of it, for a view keeps all of it."""
    if stop - start >= _PIECE and 4 * (stop - start) >= len(data):
        return memoryview(data)[start:stop]
    return data[start:stop]


def _unpad(payload: bytes | memoryview) -> bytes | memoryview:
    if not payload or payload[0] >= len(payload):
        raise ConnectionFault(Code.PROTOCOL_ERROR, "more padding than frame")
    return payload[1 : len(payload) - payload[0]]
