"""The client's role in HTTP/2: opens streams, takes answers."""

from __future__ import annotations

import functools
import struct
from typing import TYPE_CHECKING

from ._blocks import Answer
from ._body import Body
from ._client_stream import ClientStream
from ._frames import (
    DATA,
    DATA_HEAD,
    DEFAULT_WINDOW,
    ENABLE_PUSH,
    END_ALL,
    END_HEADERS,
    END_STREAM,
    FRAME_SIZE,
    HEAD,
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_FRAME_SIZE,
    MAX_HEADER_LIST_SIZE,
    MAX_STREAM_ID,
    PREFACE,
    Code,
    ConnectionFault,
    StreamFault,
    code_name,
    settings,
    window_update,
)
from ._headers import MAX_HEADER_LIST, BlockDecoder
from ._http2 import Connection, Goaway, Http2Config
from ._sending import WRITE_SIZE, Queue, Stream

if TYPE_CHECKING:
    from collections.abc import Callable


_MOST_SPARE = 64
"""Streams that calls which wait at the peer leave to the others; an eighth of few."""


@functools.lru_cache(32)
def _shape(block: int, message: int, trailers: int) -> struct.Struct:
    """An answer as usual, parts of these lengths: what its three frames have before the number
    of the stream, that number, and what they have behind it."""
    return struct.Struct(f">5sI{block + 5}sI5s{message}s5sI{trailers}s")


class ClientConnection(Connection):
    """One connection of a client.

    ``waiting`` are the urgent and the normal calls that have not begun, first
    in first out, and perhaps those that wait at the peer for long: they leave
    some of the streams that it allows to the others.  The caller owns these
    queues and may give them to the next connection; this one takes a call out
    when it is about to leave, once the peer's SETTINGS are there, as long as
    :attr:`accepting` holds and the peer allows another stream.  ``on_output``
    is called when :meth:`abandon` has left something to write.
    """

    max_frame = 256 * 1024
    streams: dict[int, ClientStream]  # type: ignore[assignment]

    def __init__(
        self, config: Http2Config, waiting: tuple[Queue, ...], on_output: Callable[[], None]
    ) -> None:
        super().__init__(config, waiting)
        self.accepting = True
        self.answers = 0
        """How many calls were answered: whether the connection was of any use."""
        self.now = 0.0
        """The time, kept by the driver: when ``data_to_send`` is called."""
        self._on_output = on_output
        self._patient = waiting[2] if len(waiting) > 2 else None
        self.next_id = 1
        """The number of the next stream that is opened."""
        self._decoder = BlockDecoder(Answer)
        self._known = self._decoder.known
        self._control += PREFACE + settings(
            {
                HEADER_TABLE_SIZE: 0,
                ENABLE_PUSH: 0,
                INITIAL_WINDOW_SIZE: config.stream_window,
                MAX_FRAME_SIZE: self.max_frame,
                MAX_HEADER_LIST_SIZE: MAX_HEADER_LIST,
            }
        )
        if config.connection_window > DEFAULT_WINDOW:
            self._control += window_update(0, config.connection_window - DEFAULT_WINDOW)

    def abandon(self, stream: ClientStream, code: Code = Code.CANCEL) -> None:
        """Undo a call of this connection that has begun: it is reset.

        Does nothing if the stream has ended.
        """
        if self.streams.get(stream.id) is stream:
            self._forget(stream)
            if not (self.closed or stream.given_up):
                self._reset(stream.id, code)
                self._on_output()

    def reset(self, stream: ClientStream) -> None:
        """Tell the peer that the answer is not wanted, but take it if it is under way.

        The stream stays until it is answered or abandoned.
        """
        if not stream.local_ended:
            # No answer can be under way yet.
            self.abandon(stream)
        elif self.streams.get(stream.id) is stream and not self.closed and not stream.given_up:
            stream.given_up = True
            self._reset(stream.id, Code.CANCEL)
            self._on_output()

    def lost(self) -> list[ClientStream]:
        """The connection is gone: gives the calls that were left open, oldest first."""
        self.closed = True
        self.accepting = False
        left = list(self.streams.values())
        self.streams.clear()
        return left

    def fail(self, fault: ConnectionFault) -> None:
        self.accepting = False
        super().fail(fault)

    def _room(self, waiting: Queue) -> int:
        if not (self.accepting and self.settings_received):
            return 0
        limit = self.peer_max_streams
        if waiting is self._patient and limit > 1:
            limit -= min(-(-limit // 8), _MOST_SPARE)
        return limit - len(self.streams)

    def _begin(self, waiting: Queue, most: int, out: bytearray) -> None:
        # A loop, and all of it here: each call on the way would be a twentieth of an ack.
        now, streams = self.now, self.streams
        window = self.config.stream_window
        for _ in range(min(most, len(waiting))):
            stream, _ = waiting.popitem(last=False)
            if TYPE_CHECKING:
                assert isinstance(stream, ClientStream)
            block = stream.header_block(now)
            if block is None:
                continue
            number = self.next_id
            self.next_id = number + 2
            stream.begin(number, self._peer_window, window)
            stream.connection = self
            stream.given_up = False
            stream.begun_at = now
            stream.head = stream.trailers = None
            streams[number] = stream
            if number >= MAX_STREAM_ID:
                self.accepting = False
            message = stream.message
            size, length = len(message) + 5, len(block)
            if (
                size > FRAME_SIZE
                or size > self.send_window
                or size > self._peer_window
                or length > FRAME_SIZE
                or self._table_off
            ):
                stream.block = block
                if self._emit(stream, out):
                    self._enqueue(stream)
                return
            # The usual call: all of it at once.
            self.send_window -= size
            stream.local_ended = True
            out += HEAD.pack(length >> 8, length & 255, HEADERS, END_HEADERS, number)
            out += block
            out += DATA_HEAD.pack(size >> 8, size & 255, DATA, END_STREAM, number, 0, size - 5)
            out += message
            if len(out) >= WRITE_SIZE or self.send_window <= 0 or not self.accepting:
                return

    def _all_taken(self, stream: Stream, out: bytearray) -> None:
        stream.local_ended = True

    def _take_whole(self, data: bytes, start: int, stop: int, number: int) -> int:
        # What is not exactly as usual is judged frame by frame, with the same result.
        known = self._known
        head = known.get(data[start:stop])
        end = len(data)
        if head is None or not head.opens or end - stop < 14:
            return 0
        high, low, kind, flags, same, compressed, size = DATA_HEAD.unpack_from(data, stop)
        length = high << 8 | low
        last = stop + 9 + length  # where the trailers' frame begins
        if same != number or kind != DATA or flags or compressed or size + 5 != length:
            return 0
        if end - last < 9:
            return 0
        high, low, kind, flags, same = HEAD.unpack_from(data, last)
        at: int = last + 9 + (high << 8 | low)
        if same != number or kind != HEADERS or flags != END_ALL or at > end:
            return 0
        trailers = known.get(data[last + 9 : at])
        if trailers is None or not trailers.closes:
            return 0
        stream = self.streams.get(number)
        left = self._receive_window - length
        if (
            stream is None
            or stream.head is not None
            or not stream.local_ended
            or length > FRAME_SIZE
            or length > stream.receive_window
            or size > self.config.max_message
            or left < self.config.connection_window >> 1
        ):
            return 0
        self._receive_window = left
        self.answers += 1
        del self.streams[number]
        stream.replied(data[stop + 14 : last])
        follows = at + 9 + stop - start  # where the head of the next message would be
        if end - at < at - start + 9 or data[follows : follows + 5] != data[stop : stop + 5]:
            return at  # the usual end: looked at here, for a lone answer should not pay for more
        return self._take_alike(data, at, stop - start, size, at - last - 9)

    def _take_alike(self, data: bytes, at: int, *lengths: int) -> int:
        """Take the answers that follow on one as usual, as long as they differ from it in
        nothing but stream and message, as those of acks do; where they end."""
        shape = _shape(*lengths)
        size, unpack, streams = shape.size, shape.unpack_from, self.streams
        length = lengths[1] + 5
        head, _, block, _, prefix, _, tail, _, trailers = unpack(data, at - size)
        stop = len(data) - size
        while at <= stop:
            first, number, second, same, third, message, fourth, also, fifth = unpack(data, at)
            stream = streams.get(number)
            left = self._receive_window - length
            if (
                stream is None
                or number != same
                or number != also
                or first != head
                or second != block
                or third != prefix
                or fourth != tail
                or fifth != trailers
                or stream.head is not None
                or not stream.local_ended
                or left < self.config.connection_window >> 1
            ):
                break
            at += size
            self._receive_window = left
            self.answers += 1
            del streams[number]
            stream.replied(message)
        return at

    def _on_block(self, number: int, flags: int, block: bytes) -> None:
        answer = self._known.get(block) or self._decoder.decode(block)
        stream = self.streams.get(number)
        if stream is None:
            self._on_closed_stream(number, HEADERS)
            return
        if answer.fault is not None:
            raise StreamFault(Code.PROTOCOL_ERROR, answer.fault)
        ended = flags & END_STREAM
        if stream.head is None:
            if answer.status is None:
                raise StreamFault(Code.PROTOCOL_ERROR, "an answer without :status")
            if answer.status < 200:
                if ended:
                    raise StreamFault(Code.PROTOCOL_ERROR, "the answer ended with a 1xx")
                return
            stream.head = answer
            # Whatever is no gRPC may have a body without end: we do not wait.
            if not ended and answer.is_grpc:
                return
        elif not ended:
            raise StreamFault(Code.PROTOCOL_ERROR, "trailers that do not end the stream")
        elif answer.status is not None:
            raise StreamFault(Code.PROTOCOL_ERROR, "a :status in trailers")
        if ended:
            stream.trailers = answer
        self._end(stream, bool(ended))

    def _on_body(self, stream: Stream, payload: bytes | memoryview, ended: bool) -> None:
        if TYPE_CHECKING:
            assert isinstance(stream, ClientStream)
        if stream.head is None:
            raise StreamFault(Code.PROTOCOL_ERROR, "data before headers")
        body = stream.body
        if not body:
            stream.body = body = payload if isinstance(payload, bytes) else Body(payload)
        elif stream.expected < 0 or len(body) <= stream.expected:
            # What follows the message is an error already: keep no more of it.
            if isinstance(body, bytes):
                stream.body = body = Body(body)
            body.append(payload)
        if stream.expected < 0 and len(body) >= 5:
            head = body[:5] if isinstance(body, bytes) else body.head()
            size = int.from_bytes(head[1:], "big")
            stream.expected = size + 5
            if size > self.config.max_message:
                self._forget(stream)
                self._reset(stream.id, Code.CANCEL)
                stream.oversized(size)
                return
        if ended:
            self._end(stream, True)

    def _end(self, stream: ClientStream, ended: bool) -> None:
        self.answers += 1
        stream.remote_ended = ended
        del self.streams[stream.id]
        if not (ended and stream.local_ended):
            # Answered before the request was over: nobody wants the rest.
            self._unqueue(stream)
            self._reset(stream.id, Code.CANCEL)
        stream.answered()

    def _on_reset(self, stream: Stream, code: int) -> None:
        assert isinstance(stream, ClientStream)
        self._forget(stream)
        stream.broken(
            code,
            f"the server reset the call: {code_name(code)}",
            unprocessed=code == Code.REFUSED_STREAM,
        )

    def _on_stream_fault(self, number: int, fault: StreamFault) -> None:
        self._reset(number, fault.code)
        stream = self.streams.get(number)
        if stream is not None:
            self._forget(stream)
            reason = f"the server broke the protocol: {fault.reason}"
            stream.broken(fault.code, reason, unprocessed=False)

    def _on_goaway(self, said: Goaway) -> None:
        self.accepting = False
        above = [stream for number, stream in self.streams.items() if number > said.last_stream]
        for stream in above:
            self._forget(stream)
        # The newest first: whoever puts each at the front of a queue keeps the order.
        for stream in reversed(above):
            stream.broken(Code.REFUSED_STREAM, "the server is going away", unprocessed=True)

    def _on_closed_stream(self, number: int, kind: int) -> None:
        # Frames that were under way when we reset the stream are no fault.
        if number == 0 or number % 2 == 0 or number >= self.next_id:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "a frame on a stream that never was")
