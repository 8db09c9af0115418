"""The server's role in HTTP/2: takes requests, sends answers."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from ._frames import (
    DATA,
    DEFAULT_WINDOW,
    END_STREAM,
    HEADER_TABLE_SIZE,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_HEADER_LIST_SIZE,
    MAX_STREAM_ID,
    PREFACE,
    Code,
    ConnectionFault,
    StreamFault,
    goaway,
    header_frames,
    rst_stream,
    settings,
    window_update,
)
from ._headers import MAX_HEADER_LIST
from ._http2 import Connection, Goaway, Http2Config
from ._sending import Stream
from ._server_requests import RequestDecoder
from ._server_stream import RequestFault, ServerStream, check_messages

if TYPE_CHECKING:
    from collections.abc import Callable


_DRAIN_PING = bytes.fromhex("0b7ba2f08b9bfe54")
"""The real server's payload."""
_REMEMBERED_CLOSED = 1024


class ServerConnection(Connection):
    """One connection of a server.

    ``on_request`` is called with each stream whose request is complete, or
    known to be faulty (see ``fault``), once, at the end of the ``feed`` that
    brought it: a call that was reset in the same read never gets there.  It
    must answer, now or later, with :meth:`respond`, :meth:`refuse` or
    :meth:`reset`.  ``on_open`` is called before, for a stream whose request
    is not complete at the end of the ``feed`` that opened it; it may refuse.
    """

    streams: dict[int, ServerStream]  # type: ignore[assignment]
    may_repeat = False

    def __init__(
        self,
        config: Http2Config,
        on_request: Callable[[ServerStream], None],
        on_open: Callable[[ServerStream], None],
    ) -> None:
        super().__init__(config, (OrderedDict(), OrderedDict()))
        self._on_request = on_request
        self._on_open = on_open
        self._decoder = RequestDecoder()
        self._preface_left = PREFACE
        self._feed_number = 0
        self._resets = 0
        self.buffered = 0
        """Bytes of requests that are not complete."""
        self.buffer_limit = config.max_buffered
        """What :attr:`buffered` may become within a ``feed``."""
        # Requests that get no more credit until older ones are complete.
        self._starved: dict[ServerStream, None] = {}
        self._opened: list[ServerStream] = []
        self._ready: list[ServerStream] = []
        self._last_id = 0
        self._final_id = MAX_STREAM_ID
        self._draining = False
        self._taken: list[ServerStream] = []
        # Streams closed lately: True if we reset them, so that the peer may
        # have sent more before it knew.
        self._closed_streams: OrderedDict[int, bool] = OrderedDict()
        self._control += settings(
            {
                HEADER_TABLE_SIZE: 0,
                MAX_CONCURRENT_STREAMS: config.max_streams,
                INITIAL_WINDOW_SIZE: config.stream_window,
                MAX_HEADER_LIST_SIZE: MAX_HEADER_LIST,
            }
        )
        if config.connection_window > DEFAULT_WINDOW:
            self._control += window_update(0, config.connection_window - DEFAULT_WINDOW)

    # The driver's face ----------------------------------------------------

    def feed(self, data: bytes | bytearray) -> None:
        self._feed_number += 1
        self._resets = 0
        if self._preface_left:
            expected = self._preface_left[: len(data)]
            if bytes(data[: len(expected)]) != expected:
                fault = ConnectionFault(Code.PROTOCOL_ERROR, "no HTTP/2 preface")
                self.fail(fault)
                raise fault
            self._preface_left = self._preface_left[len(expected) :]
            data = data[len(expected) :]
        super().feed(data)

    def respond(self, stream: ServerStream, head: bytes, message: bytes, trailers: bytes) -> None:
        """Queue an answer: encoded header block, message, encoded trailers.

        Does nothing if the call is over.
        """
        if self._answerable(stream):
            stream.block, stream.message, stream.tail = head, message, trailers
            # Not -1 any more: an answer is on its way.
            stream.offset = -2
            self._enqueue(stream)

    def send(self, stream: ServerStream, head: bytes, message: bytes) -> None:
        """Queue one of several messages; ``head`` only with the first of them.

        ``on_written`` tells when it has left: only then send another, or end
        the answer with :meth:`refuse` and the trailers.  Does nothing if the
        call is over.
        """
        if self._answerable(stream):
            if head:
                self._control += header_frames(stream.id, self._table_off + head, 0)
                self._table_off = b""
            stream.more = True
            stream.rest = memoryview(message)
            stream.offset = 0
            self._enqueue(stream)

    def refuse(self, stream: ServerStream, block: bytes, code: Code = Code.NO_ERROR) -> None:
        """Answer with a single header block (trailers-only).

        A reset with ``code`` follows, if that is not NO_ERROR.  Does nothing
        if the call is over.
        """
        if self._answerable(stream):
            block, self._table_off = self._table_off + block, b""
            self._control += header_frames(stream.id, block, END_STREAM)
            stream.local_ended = True
            self._finish(stream, self._control, code)

    def reset(self, stream: ServerStream, code: Code) -> None:
        """End a call without an answer, or give up one that is queued.

        Does nothing if the call is over.
        """
        if self.streams.get(stream.id) is stream:
            self._close(stream, ours=True)
            self._reset(stream.id, code)

    def written(self) -> None:
        """What ``data_to_send`` gave has been written: tells ``on_written``."""
        if self._taken:
            taken, self._taken = self._taken, []
            for stream in taken:
                if stream.on_written is not None:
                    stream.on_written()

    def lost(self) -> list[ServerStream]:
        """The connection is gone: gives the calls whose answers were not all taken,
        and those taken of which :meth:`written` had not been told."""
        self.closed = True
        left = [*self.streams.values(), *self._taken]
        self.streams.clear()
        self._taken.clear()
        self._starved.clear()
        self.buffered = 0
        return left

    def start_drain(self) -> None:
        """Say goodbye in two steps: streams that cross the first one are still served.

        The second step follows when the peer acknowledges, or on
        :meth:`finish_drain`.  Idempotent.
        """
        if not self._draining and not self.closed:
            self._draining = True
            self._control += goaway(MAX_STREAM_ID, Code.NO_ERROR)
            self.ping(_DRAIN_PING)

    def finish_drain(self) -> None:
        """The second step of the goodbye: later streams are ignored.  Idempotent."""
        if self._final_id == MAX_STREAM_ID and not self.closed:
            self._draining = True
            self._final_id = self._last_id
            self._control += goaway(self._final_id, Code.NO_ERROR)

    @property
    def finished(self) -> bool:
        """Nothing is open and nothing will be: write what is left, and close."""
        over = self.closed or self._final_id != MAX_STREAM_ID or self.goaway is not None
        return over and not self.streams

    # Incoming ---------------------------------------------------------------

    def _fed(self) -> None:
        if self._draining and self._final_id == MAX_STREAM_ID and self.last_pong == _DRAIN_PING:
            self.finish_drain()
        if self._opened:
            opened, self._opened = self._opened, []
            for stream in opened:
                if not stream.remote_ended and self._answerable(stream) and stream.fault is None:
                    self._on_open(stream)
        if self._ready:
            ready, self._ready = self._ready, []
            for stream in ready:
                if self.streams.get(stream.id) is stream:
                    self._on_request(stream)

    def _last_peer_stream(self) -> int:
        return self._last_id

    def _on_block(self, number: int, flags: int, block: bytes) -> None:
        request, timeout = self._decoder.decode(block)
        stream = self.streams.get(number)
        if stream is not None:
            if stream.remote_ended:
                raise StreamFault(Code.STREAM_CLOSED, "headers after the end of the request")
            if not flags & END_STREAM or request.has_pseudo or request.fault is not None:
                raise StreamFault(Code.PROTOCOL_ERROR, "bad trailers")
            self._ended(stream)
            return
        if number % 2 == 0 or number <= self._last_id:
            self._on_closed_stream(number, HEADERS)
            return
        self._last_id = number
        if number > self._final_id:
            return
        if len(self.streams) >= self.config.max_streams:
            raise StreamFault(Code.REFUSED_STREAM, "too many streams")
        if not request.has_pseudo and request.fault is None:
            raise StreamFault(Code.PROTOCOL_ERROR, "a request without :method, :scheme or :path")
        if request.fault is not None:
            raise StreamFault(Code.PROTOCOL_ERROR, request.fault)
        stream = ServerStream(request, timeout, self._feed_number)
        stream.begin(number, self._peer_window, self.config.stream_window)
        self.streams[number] = stream
        if request.too_large:
            stream.remote_ended = bool(flags & END_STREAM)
            self._offer(stream, RequestFault.HEADERS_TOO_LARGE)
        elif flags & END_STREAM:
            self._ended(stream)
        else:
            self._opened.append(stream)

    def _on_body(self, stream: Stream, payload: bytes | memoryview, ended: bool) -> None:
        assert isinstance(stream, ServerStream)
        stream.received += len(payload)
        if stream.fault is None and stream.open:
            if stream.body:
                if type(stream.body) is bytes:
                    stream.body = bytearray(stream.body)
                stream.body += payload
            else:
                stream.body = payload if type(payload) is bytes else bytearray(payload)
            self.buffered += len(payload)
            limit = self.config.max_message + 5
            if stream.expected < 0 and len(stream.body) >= 5:
                stream.expected = int.from_bytes(stream.body[1:5], "big") + 5
            if stream.expected > limit or len(stream.body) > 2 * limit:
                self._offer(stream, RequestFault.MESSAGE_TOO_LARGE)
        if ended:
            self._ended(stream)
        elif self.buffered > self.buffer_limit:
            raise StreamFault(Code.REFUSED_STREAM, "too much of incomplete requests")

    def _ended(self, stream: ServerStream) -> None:
        stream.remote_ended = True
        declared = stream.request.content_length
        if declared is not None and declared != stream.received:
            raise StreamFault(Code.PROTOCOL_ERROR, "content-length is not the length")
        if stream.fault is None:
            body = stream.body
            self._drop_body(stream)
            fault = check_messages(body)
            if fault is None:
                stream.payload = bytes(body[5 : 5 + int.from_bytes(body[1:5], "big")])
            self._offer(stream, fault)

    def _offer(self, stream: ServerStream, fault: RequestFault | None) -> None:
        stream.fault = fault
        self._drop_body(stream)
        self._ready.append(stream)

    def _drop_body(self, stream: ServerStream) -> None:
        self.buffered -= len(stream.body)
        stream.body = b""
        if self._starved:
            self._starved.pop(stream, None)
            self._feed_starved()

    def _may_grow(self, stream: Stream) -> bool:
        # Many large requests at once: the oldest goes on, so that it is done before there is no
        # room for any of them.
        assert isinstance(stream, ServerStream)
        if self.buffered <= self.buffer_limit >> 2 or stream is self._oldest():
            return True
        self._starved[stream] = None
        return False

    def _oldest(self) -> ServerStream | None:
        """The first request that is not complete."""
        return next((stream for stream in self.streams.values() if stream.incomplete), None)

    def _feed_starved(self) -> None:
        oldest = self._oldest()
        for stream in list(self._starved):
            if stream is oldest or self.buffered <= self.buffer_limit >> 2:
                del self._starved[stream]
                self._give_credit(stream)

    def _on_reset(self, stream: Stream, code: int) -> None:
        assert isinstance(stream, ServerStream)
        if stream.feed_number == self._feed_number:
            self._resets += 1
            if self._resets > self.config.max_resets:
                raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "too_many_resets")
        self._close(stream, ours=False)
        if stream.on_reset is not None:
            stream.on_reset()

    def _on_stream_fault(self, number: int, fault: StreamFault) -> None:
        self._reset(number, fault.code)
        stream = self.streams.get(number)
        if stream is None:
            self._remember_closed(number, ours=True)
            return
        self._close(stream, ours=True)
        if stream.on_reset is not None:
            stream.on_reset()

    def _on_goaway(self, said: Goaway) -> None:
        """The peer opens no more streams; its calls are answered, see :attr:`finished`."""

    def _on_closed_stream(self, number: int, kind: int) -> None:
        if number == 0 or number % 2 == 0 or (number > self._last_id and kind != HEADERS):
            raise ConnectionFault(Code.PROTOCOL_ERROR, "a frame on a stream that never was")
        if number > self._final_id:
            return
        stream = self.streams.get(number)
        if stream is not None:
            raise StreamFault(Code.STREAM_CLOSED, "data after the end of the request")
        ours = self._closed_streams.get(number)
        if ours or kind not in (DATA, HEADERS):
            return
        if kind == DATA:
            raise StreamFault(Code.STREAM_CLOSED, "data on a closed stream")
        if ours is None:
            raise ConnectionFault(Code.PROTOCOL_ERROR, "a stream number that went back")
        raise ConnectionFault(Code.STREAM_CLOSED, "headers on a closed stream")

    # Outgoing ---------------------------------------------------------------

    def _answerable(self, stream: ServerStream) -> bool:
        return self.streams.get(stream.id) is stream and stream.open and not self.closed

    def _all_taken(self, stream: Stream, out: bytearray) -> None:
        assert isinstance(stream, ServerStream)
        self._taken.append(stream)
        if stream.more:
            stream.offset = -1
        else:
            stream.local_ended = True
            self._finish(stream, out)

    def _finish(self, stream: ServerStream, out: bytearray, code: Code = Code.NO_ERROR) -> None:
        ended = stream.remote_ended
        self._close(stream, ours=not ended)
        if not ended or code is not Code.NO_ERROR:
            # Answered before the request was over: the peer can stop sending.
            # After the answer, so not through the control frames.
            out += rst_stream(stream.id, code)

    def _close(self, stream: ServerStream, *, ours: bool) -> None:
        self._forget(stream)
        self._drop_body(stream)
        self._remember_closed(stream.id, ours=ours)

    def _remember_closed(self, number: int, *, ours: bool) -> None:
        self._closed_streams[number] = ours
        if len(self._closed_streams) > _REMEMBERED_CLOSED:
            self._closed_streams.popitem(last=False)
