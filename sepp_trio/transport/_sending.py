"""The outgoing half of a connection: what is written next, and how much of it.

Nothing is copied into a buffer until the writer asks for bytes; messages stay
with their streams.  So urgent streams overtake frame by frame, and a call that
is undone before the writer came has left no trace.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import ClassVar

from ._frames import (
    DATA,
    DATA_HEAD,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    FRAME_SIZE,
    HEAD,
    HEADERS,
    PREFIX,
    header_frames,
)
from ._headers import TABLE_OFF

WRITE_SIZE = 64 * 1024
"""About how many bytes are taken at once: what an urgent frame may have to wait for."""
_IN_A_ROW = 16
"""Short streams that are begun one after the other while no others are there."""


class Stream:
    """One call as both halves of a connection see it: the base of both roles' streams.

    Outgoing: ``block`` (header block), ``message`` (without gRPC's prefix),
    ``tail`` (block of the trailers, empty: the message ends the stream, unless
    there is ``more`` to come).
    ``offset`` (with the prefix) is negative until the first byte has been taken.
    Incoming: ``body`` is what came in DATA frames, with the prefix.
    """

    __slots__ = (
        "block",
        "body",
        "expected",
        "id",
        "local_ended",
        "message",
        "offset",
        "receive_window",
        "remote_ended",
        "rest",
        "send_window",
        "stalled",
        "urgent",
    )

    block: bytes
    body: bytes | bytearray
    expected: int
    rest: memoryview
    # Of the class, for requests; an answer has its own.
    tail = b""
    more = False

    def __init__(self, message: bytes, *, urgent: bool = False) -> None:
        self.message = message
        self.urgent = urgent
        self.id = 0

    def begin(self, stream_id: int, send_window: int, receive_window: int) -> None:
        """Set everything that belongs to one connection."""
        self.id = stream_id
        self.send_window = send_window
        self.receive_window = receive_window
        self.offset = -1
        self.stalled = self.local_ended = self.remote_ended = False
        self.body = b""
        self.expected = -1


Queue = OrderedDict[Stream, None]
"""An ordered set: first in, first out, and any member out in constant time."""


class Sender:
    """Windows, queues and the choice of the next frames; the base of ``Connection``."""

    may_repeat: ClassVar[bool] = True
    """Whether messages are kept after they were sent, for another connection."""

    def __init__(self, waiting: tuple[Queue, ...]) -> None:
        self.streams: dict[int, Stream] = {}
        """Open streams by number, oldest first."""
        self.send_window = DEFAULT_WINDOW
        self._control = bytearray()
        self._table_off = TABLE_OFF
        # Urgent before normal; in each, streams under way and the queues of
        # streams that have not begun.
        self._lanes: tuple[tuple[Queue, tuple[Queue, ...]], ...] = (
            (OrderedDict(), waiting[:1]),
            (OrderedDict(), waiting[1:]),
        )

    @property
    def control_backlog(self) -> int:
        """Bytes of frames that answer the peer and have not been taken yet.

        A driver stops reading while this is large, or a peer that sends
        PINGs and does not read would fill the memory.
        """
        return len(self._control)

    def has_output(self) -> bool:
        """Whether :meth:`data_to_send` would give any bytes now."""
        if self._control:
            return True
        if self.send_window > 0:
            for sending, queues in self._lanes:
                if sending:
                    return True
                for waiting in queues:
                    if waiting and self._room(waiting) > 0:
                        return True
        return False

    def data_to_send(self) -> bytearray:
        """Take the next bytes to write: empty if there is nothing to send.

        At most about 64 KiB beside control frames; ask again after writing.
        What was taken counts as sent: it must be written, or the connection
        is lost.
        """
        out = self._control
        self._control = bytearray()
        for sending, queues in self._lanes:
            while len(out) < WRITE_SIZE and self.send_window > 0:
                # A frame of a stream under way, then a new stream, in turns:
                # neither a long upload nor many short calls can hold up the
                # other.
                if sending:
                    stream, _ = sending.popitem(last=False)
                    if self._emit(stream, out):
                        sending[stream] = None
                begun = False
                for waiting in queues:
                    if waiting and (room := self._room(waiting)) > 0:
                        alone = not sending and sum(map(bool, queues)) == 1
                        self._begin(waiting, min(room, _IN_A_ROW) if alone else 1, out)
                        begun = True
                if not (begun or sending):
                    break
        return out

    def _room(self, waiting: Queue) -> int:
        """How many streams of this queue may be opened now."""
        return 0

    def _begin(self, waiting: Queue, most: int, out: bytearray) -> None:
        """Open waiting streams, at least one and perhaps as many as ``most``, and send
        what is possible of them.  No others after one that is not sent whole."""
        raise NotImplementedError

    def _all_taken(self, stream: Stream, out: bytearray) -> None:
        """The last frame of the stream has been put into ``out``."""
        raise NotImplementedError

    def _enqueue(self, stream: Stream) -> None:
        self._lanes[0 if stream.urgent else 1][0][stream] = None

    def _unqueue(self, stream: Stream) -> None:
        self._lanes[0 if stream.urgent else 1][0].pop(stream, None)

    def _emit(self, stream: Stream, out: bytearray) -> bool:
        """Put the next frame or frames of a stream into ``out``.

        Returns whether there is more that only the connection's window or the
        turn of others holds back.  A stream whose own window is closed is
        marked ``stalled`` instead.
        """
        number = stream.id
        tail = stream.tail
        if stream.offset < 0:
            block = stream.block
            if self._table_off:
                block = self._table_off + block
                self._table_off = b""
            message = stream.message
            size = len(message) + 5
            if (
                size <= FRAME_SIZE
                and size <= self.send_window
                and size <= stream.send_window
                and len(block) <= FRAME_SIZE
            ):
                # The usual call: all of it at once.
                stream.offset = size
                self.send_window -= size
                stream.send_window -= size
                length = len(block)
                out += HEAD.pack(length >> 8, length & 255, HEADERS, END_HEADERS, number)
                out += block
                out += DATA_HEAD.pack(
                    size >> 8, size & 255, DATA, 0 if tail else END_STREAM, number, 0, size - 5
                )
                out += message
                if tail:
                    out += header_frames(number, tail, END_STREAM)
                self._all_taken(stream, out)
                return False
            out += header_frames(number, block, 0)
            stream.rest = memoryview(message)
            stream.offset = 0
            if not self.may_repeat:
                stream.message = b""
        rest, at = stream.rest, stream.offset
        size = len(rest) + 5
        room = min(size - at, self.send_window, stream.send_window, FRAME_SIZE)
        if room > 0:
            end = stream.offset = at + room
            self.send_window -= room
            stream.send_window -= room
            last = end == size
            ends = last and not tail and not stream.more
            out += HEAD.pack(room >> 8, room & 255, DATA, END_STREAM if ends else 0, number)
            if at < 5:
                out += PREFIX.pack(0, size - 5)[at:end]
            out += rest[max(at - 5, 0) : max(end - 5, 0)]
            if last:
                del stream.rest
                if tail:
                    out += header_frames(number, tail, END_STREAM)
                self._all_taken(stream, out)
                return False
        if stream.send_window <= 0:
            stream.stalled = True
            return False
        return True
