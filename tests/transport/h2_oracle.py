"""An h2 peer for our core, in both roles: what RFC 9113 means is for h2 to say.

h2 turns closed on any GOAWAY, so GOAWAY never reaches it: the frames are cut
out of what we send, and put by hand into what it sends.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterable

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from sepp_trio.transport._client_role import ClientConnection
from sepp_trio.transport._client_stream import ClientStream
from sepp_trio.transport._frames import GOAWAY, PREFACE
from sepp_trio.transport._headers import encode_block
from sepp_trio.transport._http2 import Http2Config
from sepp_trio.transport._server_role import ServerConnection
from sepp_trio.transport._server_stream import ServerStream
from sepp_trio.transport._status import message_of

REQUEST = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/s/m"),
    (":authority", "a"),
    ("te", "trailers"),
]
HEADS = [(":status", "200"), ("content-type", "application/grpc")]
TRAILERS = [("grpc-status", "0")]
REQUEST_BLOCK = encode_block(REQUEST)
HEAD_BLOCK = encode_block(HEADS)
TRAILER_BLOCK = encode_block(TRAILERS)


def prefixed(payload: bytes) -> bytes:
    return struct.pack(">BI", 0, len(payload)) + payload


class Call(ClientStream):
    """A call of our client; ``outcome`` is set once."""

    def __init__(self, payload: bytes, urgent: bool) -> None:
        super().__init__(payload, urgent=urgent)
        self.outcomes: list[object] = []

    def header_block(self, now: float) -> bytes:
        return REQUEST_BLOCK

    def replied(self, message: bytes) -> None:
        self.outcomes.append(message)

    def answered(self) -> None:
        assert self.trailers is not None
        self.outcomes.append(message_of(self))

    def broken(self, code: int, reason: str, *, unprocessed: bool) -> None:
        self.outcomes.append("unprocessed" if unprocessed else code)

    def oversized(self, size: int) -> None:
        self.outcomes.append("oversized")


class Pipe:
    """Bytes under way in one direction; read in any pieces."""

    def __init__(self) -> None:
        self.data = bytearray()

    def take(self, size: int) -> bytes:
        part = bytes(self.data[:size])
        del self.data[:size]
        return part


class Oracle:
    """h2 on one end, with the sending of large bodies that h2 leaves to its user."""

    def __init__(self, *, client: bool) -> None:
        config = h2.config.H2Configuration(client_side=client, header_encoding="utf-8")
        self.connection = h2.connection.H2Connection(config)
        self.connection.initiate_connection()
        self.bodies: dict[int, bytearray] = {}
        self.ended: dict[int, bytes] = {}
        self.resets: dict[int, int] = {}
        self.refused: set[int] = set()
        self.pongs = 0
        self.unacknowledged = 1
        self._sending: dict[int, tuple[bytearray, bool]] = {}

    def receive(self, data: bytes) -> None:
        for event in self.connection.receive_data(data):
            self.handle(event)
        self.pump()

    def handle(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.DataReceived):
            self.bodies.setdefault(event.stream_id, bytearray()).extend(event.data)
            self.connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            self.ended[event.stream_id] = bytes(self.bodies.pop(event.stream_id, b""))
        elif isinstance(event, h2.events.StreamReset):
            self.resets[event.stream_id] = int(event.error_code)
            self._sending.pop(event.stream_id, None)
        elif isinstance(event, h2.events.SettingsAcknowledged):
            self.unacknowledged -= 1
        elif isinstance(event, h2.events.PingAckReceived):
            self.pongs += 1
        elif isinstance(event, h2.events.ResponseReceived) and (
            ("grpc-status", "3") in event.headers
        ):
            self.refused.add(event.stream_id)

    def send(self, stream: int, payload: bytes, *, trailers: bool) -> None:
        self._sending[stream] = (bytearray(prefixed(payload)), trailers)
        self.pump()

    def forget(self, stream: int) -> None:
        self._sending.pop(stream, None)

    def pump(self) -> None:
        """Send what the windows allow."""
        for stream, (rest, trailers) in list(self._sending.items()):
            try:
                while rest:
                    room = min(self.connection.local_flow_control_window(stream), 16384)
                    if room <= 0:
                        break
                    part = bytes(rest[:room])
                    del rest[:room]
                    last = not rest and not trailers
                    self.connection.send_data(stream, part, end_stream=last)
                if not rest:
                    if trailers:
                        self.connection.send_headers(stream, TRAILERS, end_stream=True)
                    del self._sending[stream]
            except h2.exceptions.StreamClosedError:
                self._sending.pop(stream, None)

    def settings(self, values: dict[int, int]) -> None:
        """Change settings, unless a change is under way: h2 would mix the two up."""
        if self.unacknowledged:
            return
        self.unacknowledged += 1
        self.connection.update_settings(
            {h2.settings.SettingCodes(name): value for name, value in values.items()}
        )


class ClientWorld:
    """Our client core and h2's server, with the wire between."""

    def __init__(self) -> None:
        self.waiting: tuple[OrderedDict[Call, None], OrderedDict[Call, None]] = (
            OrderedDict(),
            OrderedDict(),
        )
        self.core = ClientConnection(Http2Config(), self.waiting, lambda: None)  # type: ignore[arg-type]
        self.peer = Oracle(client=False)
        self.calls: list[Call] = []
        self.cancelled: set[Call] = set()
        self.answered: set[int] = set()
        self.goaway_last: int | None = None
        self.up, self.down = Pipe(), Pipe()

    def call(self, size: int, urgent: bool) -> None:
        call = Call(bytes([len(self.calls) % 256]) * size, urgent)
        self.calls.append(call)
        self.waiting[0 if urgent else 1][call] = None

    def cancel(self, index: int) -> None:
        if self.calls:
            call = self.calls[index % len(self.calls)]
            if not call.outcomes and call not in self.cancelled:
                self.cancelled.add(call)
                self.waiting[0 if call.urgent else 1].pop(call, None)
                self.core.abandon(call)

    def move_up(self, size: int) -> None:
        if len(self.up.data) < size:
            self.up.data += self.core.data_to_send()
        self.peer.receive(self.up.take(size))

    def move_down(self, size: int) -> None:
        self.down.data += self.peer.connection.data_to_send()
        self.core.feed(self.down.take(size))

    def answer(self, index: int, size: int) -> None:
        if waiting := self._answerable():
            stream = waiting[index % len(waiting)]
            self.answered.add(stream)
            self.peer.connection.send_headers(stream, HEADS)
            self.peer.send(stream, self.peer.ended[stream][5:6] * size, trailers=True)

    def reset(self, index: int) -> None:
        if waiting := self._answerable():
            stream = waiting[index % len(waiting)]
            self.answered.add(stream)
            self.peer.connection.reset_stream(stream, h2.errors.ErrorCodes.REFUSED_STREAM)

    def goaway(self) -> None:
        """Say goodbye with the highest stream that h2 has seen."""
        self.down.data += self.peer.connection.data_to_send()
        last = self.peer.connection.highest_inbound_stream_id
        self.goaway_last = last
        payload = struct.pack(">II", last, 0)
        self.down.data += struct.pack(">HBBBI", 0, 8, GOAWAY, 0, 0) + payload

    def _answerable(self) -> list[int]:
        return [s for s in self.peer.ended if s not in self.answered and s not in self.peer.resets]

    def settle(self) -> None:
        """Move everything until nothing moves, answering all."""
        final = False
        for _ in range(10_000):
            if not self.peer.unacknowledged and not final:
                final = True
                self.peer.settings({3: 100, 4: 65535})
            self.move_up(1 << 20)
            self.move_down(1 << 20)
            while self._answerable():
                self.answer(0, 10)
            self.move_down(1 << 20)
            if final and not (self.up.data or self.down.data or self.core.has_output()):
                return
        raise AssertionError("it never settles")


class ServerWorld:
    """Our server core and h2's client, with the wire between."""

    def __init__(self, config: Http2Config | None = None) -> None:
        self.offered: list[ServerStream] = []
        self.core = ServerConnection(
            config or Http2Config(max_resets=1000), self.offered.append, lambda stream: None
        )
        self.peer = Oracle(client=True)
        self.sent: dict[int, bytes] = {}
        self.done: dict[int, object] = {}
        self.written: set[int] = set()
        self.lost: set[int] = set()
        self.goaways: list[int] = []
        self.up, self.down = Pipe(), Pipe()

    def call(self, size: int) -> None:
        connection = self.peer.connection
        if connection.open_outbound_streams >= min(
            connection.remote_settings.max_concurrent_streams, 50
        ):
            return
        stream = connection.get_next_available_stream_id()
        connection.send_headers(stream, REQUEST)
        self.sent[stream] = bytes([stream % 256]) * size
        self.peer.send(stream, self.sent[stream], trailers=False)

    def cancel(self, index: int) -> None:
        live = [s for s in self.sent if s not in self.peer.ended and s not in self.peer.resets]
        if live:
            stream = live[index % len(live)]
            self.peer.connection.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
            self.peer.resets[stream] = 8
            self.peer.forget(stream)

    def move_up(self, size: int) -> None:
        self.up.data += self.peer.connection.data_to_send()
        self.core.feed(self.up.take(size))

    def move_down(self, size: int) -> None:
        if len(self.down.data) < size:
            self.down.data += self._without_goaway(bytes(self.core.data_to_send()))
            self.core.written()
        self.peer.receive(self.down.take(size))

    def _without_goaway(self, data: bytes) -> bytes:
        kept, at = b"", 0
        while at < len(data):
            end = at + 9 + int.from_bytes(data[at : at + 3])
            if data[at + 3] == GOAWAY:
                self.goaways.append(int.from_bytes(data[at + 9 : at + 13]))
            else:
                kept += data[at:end]
            at = end
        return kept

    def answer(self, index: int, size: int, how: str) -> None:
        if not self.offered:
            return
        stream = self.offered.pop(index % len(self.offered))
        assert stream.fault is None
        assert stream.payload == self.sent[stream.id]
        if how == "respond":
            stream.on_written = lambda: self.written.add(stream.id)
            stream.on_reset = lambda: self.lost.add(stream.id)
            reply = stream.payload[:1] * size
            self.done[stream.id] = prefixed(reply)
            self.core.respond(stream, HEAD_BLOCK, reply, TRAILER_BLOCK)
        elif how == "refuse":
            self.done[stream.id] = b""
            self.core.refuse(stream, encode_block([*HEADS, ("grpc-status", "3")]))
        else:
            self.done[stream.id] = 2
            self.core.reset(stream, h2.errors.ErrorCodes.INTERNAL_ERROR)  # type: ignore[arg-type]

    def settle(self) -> None:
        final = False
        for _ in range(10_000):
            if not self.peer.unacknowledged and not final:
                final = True
                self.peer.settings({4: 65535})
            self.move_up(1 << 20)
            while self.offered:
                self.answer(0, 10, "respond")
            self.move_down(1 << 20)
            self.move_up(1 << 20)
            if final and not (self.up.data or self.down.data or self.core.has_output()):
                return
        raise AssertionError("it never settles")


def pieces(data: bytes, sizes: Iterable[int]) -> list[bytes]:
    """Cut data into pieces of these sizes, and the rest."""
    parts, at = [], 0
    for size in sizes:
        parts.append(data[at : at + size])
        at += size
    return [*parts, data[at:]]


__all__ = ["HEADS", "PREFACE", "Call", "ClientWorld", "Oracle", "ServerWorld", "pieces"]
