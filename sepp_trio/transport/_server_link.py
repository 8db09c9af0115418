"""One connection of a server: its reader, its writer, and its calls."""

from __future__ import annotations

import logging
import math
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import trio
from grpclib.const import Handler, Status
from grpclib.exceptions import GRPCError

from ._frames import Code, ConnectionFault
from ._http2 import Http2Config
from ._server_answers import HEADERS_TOO_LARGE, OK_TRAILERS, ONLY_IDENTITY, parse_timeout
from ._server_call import ServerCall, log
from ._server_memory import MemoryShare
from ._server_role import ServerConnection
from ._server_stream import RequestFault, ServerStream
from ._server_watch import watch
from ._server_workers import Workers

if TYPE_CHECKING:
    from ._server import GrpcServer

_WINDOW = 1024 * 1024
_READ_SIZE = 64 * 1024
_CONTROL_LIMIT = 64 * 1024
_CLOSE_TIMEOUT = 1.0
"""Seconds that a goodbye may take."""


class ServerLink:
    """A stream with a peer behind it, from the preface to the close.

    The reader turns frames into calls, each call is a task, and only the
    writer writes.  What is queued in one pass of the loop leaves in one write.
    """

    def __init__(self, server: GrpcServer, stream: trio.abc.Stream, peer: str) -> None:
        config = server.config
        self.server = server
        self.peer = peer
        self.core = ServerConnection(
            Http2Config(
                stream_window=_WINDOW,
                connection_window=_WINDOW,
                max_message=config.max_message_bytes,
                max_streams=config.max_calls,
                max_resets=config.max_early_resets,
                max_buffered=config.max_buffered_bytes,
            ),
            self._on_request,
            self._on_open,
        )
        self.awaited_sign: float | None = None
        """When the peer, silent since, was asked for a sign of life."""
        self.heard = trio.current_time()
        """When bytes came last."""
        self.sending_since = math.inf
        """When the write under way began."""
        self.answers_sent = 0
        self.running = 0
        """Calls whose handlers have not ended."""
        self._stream = stream
        self._writer_idle = trio.lowlevel.ParkingLot()
        self._flushed = trio.lowlevel.ParkingLot()
        self._room = trio.lowlevel.ParkingLot()
        self._scope = trio.CancelScope()
        self._io_scope = trio.CancelScope()
        # From the start of their tasks until these have ended and the answers have left.
        self._calls: dict[int, ServerCall] = {}
        # Complete requests that wait until the peer has taken more of what waits for it.
        self._held: dict[ServerStream, Handler] = {}
        self._held_bytes = 0
        self._calm = trio.lowlevel.ParkingLot()
        self.memory = MemoryShare(server.memory, self._on_room)

    # The connection's tasks -----------------------------------------------------

    async def run(self) -> None:
        """Serve until the peer leaves, is given up, or the drain is over.

        Closes the stream.  Raises no ``Exception`` for what a peer does.
        """
        with closing(self.memory), self._scope:
            async with trio.open_nursery() as nursery:
                self.workers = Workers(nursery)
                try:
                    with self._io_scope:
                        async with trio.open_nursery() as io_nursery:
                            io_nursery.start_soon(watch, self)
                            io_nursery.start_soon(self._write)
                            await self._read()
                            io_nursery.cancel_scope.cancel(reason="the peer has left")
                finally:
                    self._lose()
                    self.workers.stop()
                    await trio.aclose_forcefully(self._stream)
        if self._scope.cancelled_caught:
            log.warning("%s: closed: still busy at the end of the drain", self.peer)

    async def _read(self) -> None:
        core, stream = self.core, self._stream
        while True:
            try:
                data = await stream.receive_some(_READ_SIZE)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
            if not data:
                return
            if core.closed:
                continue  # what the peer sent before it heard the goodbye
            self.heard = trio.current_time()
            self.awaited_sign = None
            core.buffer_limit = self.memory.request_limit - self._held_bytes
            try:
                core.feed(data)
            except ConnectionFault as fault:
                self._fault(fault)
            self._count_requests()
            # Not for calls that have only just begun: their answers are to
            # leave in one write.
            if core.has_output() or core.finished:
                self.wake()
            while core.control_backlog > _CONTROL_LIMIT and not core.closed:
                await self._flushed.park()
            while self.memory.busy and not core.closed:
                await self._calm.park()

    async def _write(self) -> None:
        core, stream = self.core, self._stream
        try:
            while True:
                data = core.data_to_send()
                if data:
                    self.sending_since = trio.current_time()
                    await stream.send_all(data)
                    self.sending_since = math.inf
                    core.written()
                    self._flushed.unpark_all()
                elif not core.finished:
                    await self._writer_idle.park()
                else:
                    core.finish_drain()
                    if not core.has_output():
                        break
            # A close with unread bytes would take the goodbye with it: the
            # peer is to close first.
            self._io_scope.deadline = trio.current_time() + _CLOSE_TIMEOUT
            if isinstance(stream, trio.abc.HalfCloseableStream):
                await stream.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self._io_scope.cancel(reason="the peer has left")

    def wake(self) -> None:
        """Let the writer see what is queued."""
        # A lot of nobody is unparked all the same, slowly.
        if self._writer_idle:
            self._writer_idle.unpark()

    def give_up(self, code: Code, reason: str) -> None:
        """End the connection, with a short time for the goodbye."""
        fault = ConnectionFault(code, reason)
        self.core.fail(fault)
        self._fault(fault)
        self.wake()

    def start_drain(self, deadline: float) -> None:
        """Say goodbye; whoever has not left at ``deadline`` is cut off."""
        self._scope.deadline = deadline
        if self.core.settings_received:
            self.core.start_drain()
            self.wake()
        else:
            self._io_scope.cancel(reason="the server stops")

    def _fault(self, fault: ConnectionFault) -> None:
        hostile = fault.code is Code.ENHANCE_YOUR_CALM
        log.log(logging.WARNING if hostile else logging.INFO, "%s: closed: %s", self.peer, fault)
        self._io_scope.deadline = trio.current_time() + _CLOSE_TIMEOUT
        self._lose()

    def _lose(self) -> None:
        """No answer leaves any more: the calls are over."""
        self.core.lost()
        self._held.clear()
        self._held_bytes = 0
        self._count_requests()
        for call in list(self._calls.values()):
            call.lose()
        self._room.unpark_all()
        self._calm.unpark_all()

    # Requests -------------------------------------------------------------------

    def _on_open(self, stream: ServerStream) -> None:
        stream.deadline = _deadline(stream)
        self._admit(stream)

    def _on_request(self, stream: ServerStream) -> None:
        fault = stream.fault
        if fault is RequestFault.HEADERS_TOO_LARGE:
            self.core.refuse(stream, HEADERS_TOO_LARGE, Code.PROTOCOL_ERROR)
            return
        if stream.deadline is None:
            stream.deadline = _deadline(stream)
        handler = self._admit(stream)
        if handler is None:
            return
        if fault is not None:
            large = fault is RequestFault.MESSAGE_TOO_LARGE
            status = Status.OUT_OF_RANGE if large else Status.INTERNAL
            self.refuse(stream, status, fault.value)
        elif self.running >= self.server.config.max_calls:
            # Handlers that outlive their reset calls count as well.
            self.core.reset(stream, Code.REFUSED_STREAM)
        elif self.backlogged:
            self._hold(stream, handler)
        else:
            self._start(stream, handler)

    def _admit(self, stream: ServerStream) -> Handler | None:
        """The handler of a request; None: it was refused."""
        try:
            handler = self.server.admit(stream.request)
        except GRPCError as error:
            self.refuse(stream, error.status, error.message)
        except Exception:
            log.exception("%s: authorize failed for %r", self.peer, stream.request.path)
            self.refuse(stream, Status.INTERNAL, "internal error")
        else:
            if stream.request.encoding in (None, "identity"):
                return handler
            block = self.server.blocks.error(Status.UNIMPLEMENTED, "compression is not supported")
            self.core.refuse(stream, block + ONLY_IDENTITY)
        return None

    def _start(self, stream: ServerStream, handler: Handler, *, waited: int = 0) -> None:
        assert stream.deadline is not None
        self.running += 1
        self.memory.add(requests=-waited, working=len(stream.payload))
        self._calls[stream.id] = call = ServerCall(self, stream, handler, stream.deadline)
        self.workers.start(call)

    def _hold(self, stream: ServerStream, handler: Handler) -> None:
        size = len(stream.payload)
        if self._held_bytes + size > self.memory.request_limit:
            self.core.reset(stream, Code.REFUSED_STREAM)
        else:
            self._held_bytes += size
            self._held[stream] = handler
            stream.on_reset = partial(self._let_go, stream)

    def _let_go(self, stream: ServerStream) -> Handler:
        self._held_bytes -= len(stream.payload)
        return self._held.pop(stream)

    def _count_requests(self) -> None:
        if change := self.core.buffered + self._held_bytes - self.memory.requests:
            self.memory.add(requests=change)

    # Answers --------------------------------------------------------------------

    @property
    def backlogged(self) -> bool:
        """Too much waits for the peer: nothing new is to be made for it."""
        return not self.core.closed and self.memory.backlogged

    async def wait_room(self) -> None:
        """Wait until the peer has taken something of what waits for it."""
        await self._room.park()

    def respond(self, call: ServerCall, reply: bytes) -> None:
        """Queue the answer of a unary call."""
        self.core.respond(call.stream, self.server.blocks.head(), reply, OK_TRAILERS)
        self.wake()

    def send(self, call: ServerCall, message: bytes) -> None:
        """Queue a message of a streaming call."""
        head = b"" if call.stream.more else self.server.blocks.head()
        self.core.send(call.stream, head, message)
        self.wake()

    def refuse(self, stream: ServerStream, status: Status, message: str | None) -> bool:
        """End a call with a status and no message, or no further one; false if that is too late."""
        blocks = self.server.blocks
        if stream.more and not stream.open:
            # A message is half out: the status cannot follow it.
            self.core.reset(stream, Code.CANCEL)
            self.wake()
            return False
        block = (blocks.trailers if stream.more else blocks.error)(status, message)
        self.core.refuse(stream, block)
        self.wake()
        return stream.local_ended

    def settle(self, call: ServerCall) -> None:
        """The call is over, and its answer has left or never will."""
        self._calls.pop(call.stream.id, None)
        self.answers_sent += 1
        call.hold(0)

    def _on_room(self) -> None:
        if self._calm and not self.memory.busy:
            self._calm.unpark_all()
        if (self._room or self._held) and not self.backlogged:
            self._room.unpark_all()
            while self._held and not self.backlogged:
                stream = next(iter(self._held))
                self._start(stream, self._let_go(stream), waited=len(stream.payload))


def _deadline(stream: ServerStream) -> float:
    timeout = parse_timeout(stream.timeout)
    return math.inf if timeout is None else trio.current_time() + timeout
