"""What the peer allows us: its settings, and the credit that it gives for our data."""

from __future__ import annotations

from ._frames import (
    ACK,
    DEFAULT_WINDOW,
    ENABLE_PUSH,
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    SETTINGS,
    WINDOW_UPDATE,
    Code,
    ConnectionFault,
    StreamFault,
    frame,
    parse_settings,
)
from ._sending import Queue, Sender, Stream


class Credit(Sender):
    """Takes SETTINGS and WINDOW_UPDATE; a base of ``Connection``."""

    def __init__(self, waiting: tuple[Queue, ...]) -> None:
        super().__init__(waiting)
        self.settings_received = False
        """The peer's first SETTINGS frame is in."""
        self.peer_max_streams = MAX_WINDOW
        self._peer_window = DEFAULT_WINDOW

    def _on_closed_stream(self, number: int, kind: int) -> None:
        """A frame came for a stream that is not open.

        Raises:
            ConnectionFault, StreamFault: it may not come.
        """
        raise NotImplementedError

    def _on_settings(self, flags: int, payload: bytes) -> None:
        if flags & ACK:
            if payload:
                raise ConnectionFault(Code.FRAME_SIZE_ERROR, "an acknowledgement with values")
            return
        for name, value in parse_settings(payload):
            if name == INITIAL_WINDOW_SIZE:
                self._on_initial_window(value)
            elif name == MAX_CONCURRENT_STREAMS:
                self.peer_max_streams = value
            elif name == MAX_FRAME_SIZE and not 16384 <= value < 1 << 24:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "MAX_FRAME_SIZE out of range")
            elif name == ENABLE_PUSH and value > 1:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "ENABLE_PUSH out of range")
        self.settings_received = True
        self._control += frame(SETTINGS, ACK, 0)

    def _on_initial_window(self, value: int) -> None:
        if value > MAX_WINDOW:
            raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE out of range")
        change, self._peer_window = value - self._peer_window, value
        # The windows of open streams change with it, below zero if need be.
        for stream in self.streams.values():
            stream.send_window += change
            if stream.send_window > MAX_WINDOW:
                raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "a window beyond 2^31-1")
            self._unstall(stream)

    def _on_window_update(self, number: int, increment: int) -> None:
        if number == 0:
            if increment == 0:
                raise ConnectionFault(Code.PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
            self.send_window += increment
            if self.send_window > MAX_WINDOW:
                raise ConnectionFault(Code.FLOW_CONTROL_ERROR, "a window beyond 2^31-1")
            return
        stream = self.streams.get(number)
        if stream is None:
            self._on_closed_stream(number, WINDOW_UPDATE)
            return
        if increment == 0:
            raise StreamFault(Code.PROTOCOL_ERROR, "WINDOW_UPDATE of nothing")
        stream.send_window += increment
        if stream.send_window > MAX_WINDOW:
            raise StreamFault(Code.FLOW_CONTROL_ERROR, "a window beyond 2^31-1")
        self._unstall(stream)

    def _unstall(self, stream: Stream) -> None:
        if stream.stalled and stream.send_window > 0:
            stream.stalled = False
            self._enqueue(stream)
