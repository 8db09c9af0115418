"""A connection through the fault proxy: frames pass from side to side, call by call.

HTTP/2 is not ended here: settings, windows, pings, resets and goodbyes of the two sides reach
each other, so that client and server behave as without a proxy. Only streams get new numbers on
the server's side (a request that is held up begins later than the one behind it), and header
blocks are written anew, so that each stands alone and can be left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio
from grpclib.const import Status

from sepp_trio.transport._frames import (
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    MAX_STREAM_ID,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    Code,
    frame,
    goaway,
    header_frames,
    rst_stream,
    window_update,
)
from sepp_trio.transport._headers import TABLE_OFF, encode_block

from ._faults import Answer, Delay, Fail, LoseReply
from ._frame_reader import Frame, FrameReader, block_decoder
from ._proxied import ProxiedCall, Way

if TYPE_CHECKING:
    from ._proxy import FaultProxy

_READ_SIZE: Final = 64 * 1024
_FRAME_SIZE: Final = 16 * 1024
_OUR_FRAMES: Final = (DATA, HEADERS, RST_STREAM)


class _Side:
    """One end of the connection: what is to be written there."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self.out: list[bytes] = []
        # Calls whose reply is complete with what is in ``out``.
        self.answering: list[ProxiedCall] = []
        self.wake = trio.Event()
        self.first_block = True
        # The other end has said that nothing more comes; or has broken off.
        self.ended = False
        self.broken = False

    def put(self, data: bytes) -> None:
        self.out.append(data)
        self.wake.set()

    def put_frame(self, number: int, item: Frame) -> None:
        if item.kind != HEADERS:
            self.put(frame(item.kind, item.flags, number, item.payload))
            return
        block = TABLE_OFF + item.payload if self.first_block else item.payload
        self.first_block = False
        self.put(header_frames(number, block, item.flags & END_STREAM))


class ProxiedConnection:
    """Passes frames between a client and the server until one of them has gone."""

    def __init__(self, proxy: FaultProxy, client: trio.abc.Stream, server: trio.abc.Stream) -> None:
        self._proxy = proxy
        self._client = _Side(client)
        self._server = _Side(server)
        self._calls: dict[int, ProxiedCall] = {}
        self._by_server: dict[int, ProxiedCall] = {}
        self._next_id = 1
        self._highest = 0
        self._requests = block_decoder()
        self._replies = block_decoder()
        self._nursery: trio.Nursery | None = None

    async def run(self) -> None:
        """Serve the connection; closes both streams."""
        client, server = self._client, self._server
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._read, client, server, True, self._from_client)
                nursery.start_soon(self._read, server, client, False, self._from_server)
                async with trio.open_nursery() as writers:
                    writers.start_soon(self._write, client)
                    writers.start_soon(self._write, server)
                nursery.cancel_scope.cancel()
        finally:
            for call in list(self._calls.values()):
                if call.server_done and call.held_reply:
                    self._proxy.lost(call)  # held up for so long that the way back has gone
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(client.stream)
                await trio.aclose_forcefully(server.stream)

    def drop(self) -> None:
        """Break the connection, for both sides."""
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel(reason="dropped by a fault")

    async def _read(
        self, side: _Side, other: _Side, preface: bool, handle: Callable[[Frame], None]
    ) -> None:
        reader = FrameReader(preface=preface)
        while True:
            try:
                data = await side.stream.receive_some(_READ_SIZE)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                other.broken = True
                data = b""
            if not data:
                other.ended = True
                other.wake.set()
                return
            for item in reader.feed(data):
                if isinstance(item, bytes):
                    other.put(PREFACE)
                else:
                    handle(item)

    async def _write(self, side: _Side) -> None:
        while True:
            if not side.out and not side.ended:
                side.wake = trio.Event()
                await side.wake.wait()
            await self._proxy.passable()
            data = b"".join(side.out)
            answered = side.answering
            side.out, side.answering = [], []
            try:
                if side.broken:
                    self.drop()
                    return
                if data:
                    await side.stream.send_all(data)
                elif side.ended:
                    if isinstance(side.stream, trio.abc.HalfCloseableStream):
                        await side.stream.send_eof()
                    else:
                        self.drop()
                    return
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                await self._proxy.passable()
                self.drop()
                return
            for call in answered:
                self._proxy.answered(call)

    # ---- from the client ----

    def _from_client(self, item: Frame) -> None:
        if item.stream == 0:
            self._server.put(frame(item.kind, item.flags, 0, item.payload))
            return
        if item.kind == PRIORITY:
            return
        call = self._calls.get(item.stream)
        if item.kind == HEADERS:
            block = self._requests.decode(item.payload)
            item = item._replace(payload=block.literal)
            if call is None:
                call = self._begin(item.stream, block.path.rpartition("/")[2])
        if call is None:
            if item.kind == DATA:
                self._client.put(window_update(0, len(item.payload)))
            return
        if item.kind == RST_STREAM:
            self._client_reset(call, item)
            return
        call.saw_request(item)
        self._pass_request(call, item)
        if item.kind in _OUR_FRAMES and item.flags & END_STREAM:
            self._proxy.asked(call)
            if isinstance(call.fault, Fail | Answer):
                self._answer(call, call.fault)

    def _begin(self, number: int, rpc: str) -> ProxiedCall:
        call = self._calls[number] = self._proxy.begin(rpc, number)
        self._highest = max(self._highest, number)
        if isinstance(call.fault, Fail | Answer):
            call.requesting = Way.SHUT
        elif isinstance(call.fault, Delay) and call.fault.request:
            call.requesting = Way.HELD
            self._later(call.fault.request, self._release_request, call)
        return call

    def _pass_request(self, call: ProxiedCall, item: Frame) -> None:
        if call.requesting is Way.HELD:
            call.held.append(item)
        elif call.requesting is Way.SHUT:
            if item.kind == DATA:
                self._client.put(window_update(0, len(item.payload)))
        else:
            if call.server_id is None:
                call.server_id = self._next_id
                self._by_server[call.server_id] = call
                self._next_id += 2
            self._server.put_frame(call.server_id, item)

    def _release_request(self, call: ProxiedCall) -> None:
        if self._calls.get(call.client_id) is not call:
            return
        call.requesting = Way.OPEN
        held, call.held = call.held, []
        for item in held:
            self._pass_request(call, item)

    def _answer(self, call: ProxiedCall, fault: Fail | Answer) -> None:
        """Answer in the server's place."""
        del self._calls[call.client_id]
        status = fault.status if isinstance(fault, Fail) else Status.OK
        call.status = status.value
        fields = [(":status", "200"), ("content-type", "application/grpc")]
        trailers = [("grpc-status", str(status.value))]
        if isinstance(fault, Fail):
            fields += [*trailers, ("grpc-message", "failed by a fault plan")]
            self._put_block(call, fields, END_STREAM)
        else:
            self._put_block(call, fields, 0)
            data = b"\0" + len(fault.message).to_bytes(4, "big") + fault.message
            for start in range(0, len(data), _FRAME_SIZE):
                part = data[start : start + _FRAME_SIZE]
                self._client.put_frame(call.client_id, Frame(DATA, 0, call.client_id, part))
            self._put_block(call, trailers, END_STREAM)
        self._client.answering.append(call)

    def _put_block(self, call: ProxiedCall, fields: list[tuple[str, str]], flags: int) -> None:
        block = encode_block(fields)
        self._client.put_frame(call.client_id, Frame(HEADERS, flags, call.client_id, block))

    def _client_reset(self, call: ProxiedCall, item: Frame) -> None:
        del self._calls[call.client_id]
        self._proxy.reset(call)
        if call.server_id is not None and not call.server_done:
            self._by_server.pop(call.server_id, None)
            self._server.put_frame(call.server_id, item)
        self._credit(self._client, call.held)
        self._credit(self._server, call.held_reply)
        call.held.clear()
        call.held_reply.clear()

    def _credit(self, side: _Side, thrown_away: list[Frame]) -> None:
        """Nobody will give credit for this data: it goes nowhere."""
        size = sum(len(item.payload) for item in thrown_away if item.kind == DATA)
        if size:
            side.put(window_update(0, size))

    # ---- from the server ----

    def _from_server(self, item: Frame) -> None:
        if item.stream == 0:
            if item.kind == GOAWAY:
                self._goodbye(item)
            else:
                self._client.put(frame(item.kind, item.flags, 0, item.payload))
            return
        call = self._by_server.get(item.stream)
        status = None
        if item.kind == HEADERS:
            block = self._replies.decode(item.payload)
            item = item._replace(payload=block.literal)
            status = block.status
        if call is None:
            self._credit(self._server, [item])
            return
        call.saw_reply(item)
        if status is not None and status.isdecimal():
            call.status = int(status)
        if item.kind == RST_STREAM or (item.kind in _OUR_FRAMES and item.flags & END_STREAM):
            call.server_done = True
            del self._by_server[item.stream]
        self._reply(call, item)

    def _reply(self, call: ProxiedCall, item: Frame) -> None:
        fault = call.fault
        if isinstance(fault, LoseReply):
            self._credit(self._server, [item])
            if call.server_done:
                self._proxy.lost(call)
                if not fault.silent:
                    self.drop()
        elif isinstance(fault, Delay) and fault.reply:
            call.held_reply.append(item)
            if call.server_done:
                self._later(fault.reply, self._release_reply, call)
        else:
            self._pass_reply(call, item)

    def _release_reply(self, call: ProxiedCall) -> None:
        held, call.held_reply = call.held_reply, []
        for item in held:
            self._pass_reply(call, item)

    def _pass_reply(self, call: ProxiedCall, item: Frame) -> None:
        self._client.put_frame(call.client_id, item)
        ended = item.kind == RST_STREAM or (item.kind in _OUR_FRAMES and item.flags & END_STREAM)
        if ended and self._calls.pop(call.client_id, None) is not None:
            self._client.answering.append(call)

    def _goodbye(self, item: Frame) -> None:
        """The last stream that the server will take up, in the client's numbers."""
        last = int.from_bytes(item.payload[:4], "big") & MAX_STREAM_ID
        code, debug = int.from_bytes(item.payload[4:8], "big"), item.payload[8:]
        if last < MAX_STREAM_ID:
            # Numbers do not tell which calls are above it: their order has changed.
            for call in list(self._calls.values()):
                if call.server_id is None or call.server_id > last:
                    self._refuse(call)
            last = self._highest
        self._client.put(goaway(last, code, debug))

    def _refuse(self, call: ProxiedCall) -> None:
        del self._calls[call.client_id]
        if call.server_id is not None:
            self._by_server.pop(call.server_id, None)
        self._credit(self._client, call.held)
        call.held.clear()
        self._client.put(rst_stream(call.client_id, Code.REFUSED_STREAM))

    # ---- later ----

    def _later(self, seconds: float, act: Callable[[ProxiedCall], None], call: ProxiedCall) -> None:
        async def wait() -> None:
            await trio.sleep(seconds)
            act(call)

        assert self._nursery is not None
        self._nursery.start_soon(wait)
