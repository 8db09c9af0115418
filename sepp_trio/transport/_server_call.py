"""One call in a server: what its handler holds, and how it ends."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from grpclib.const import Handler

    from ._server_link import ServerLink
    from ._server_memory import MemoryShare
    from ._server_stream import ServerStream

log = logging.getLogger("sepp_trio.transport.server")


class ServerCall:
    """A call whose request is complete, as its handler sees it.

    It has what generated service bases use (``recv_message``,
    ``send_message``), and ``on_undelivered``.  A handler has its task to
    itself, but not for ever: context variables that it sets are seen by later
    calls of the same peer.
    """

    __slots__ = (
        "_deadline",
        "_handler",
        "_link",
        "_over",
        "_part_written",
        "_queued",
        "_read",
        "_reply",
        "_request_size",
        "_scope",
        "_undelivered",
        "size",
        "stream",
    )

    def __init__(
        self, link: ServerLink, stream: ServerStream, handler: Handler, deadline: float
    ) -> None:
        self.stream = stream
        self.size = 0
        """Bytes of the answer that is queued or in the handler's hands."""
        self._link = link
        self._request_size = len(stream.payload)
        self._handler = handler
        self._read = self._over = self._queued = False
        self._reply: bytes | None = None
        self._part_written: trio.Event | None = None
        self._undelivered: Callable[[], None] | None = None
        self._deadline = deadline
        self._scope: trio.CancelScope | None = None
        stream.on_reset = self.lose
        stream.on_written = self._on_written

    @property
    def route(self) -> str:
        """``/package.Service/Method``."""
        return self.stream.request.path

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        """The headers of the request, pseudo-headers too."""
        return self.stream.request.fields

    # What handlers use --------------------------------------------------------

    async def recv_message(self) -> Any:
        """The request message; None when it has been read.  No checkpoint.

        Raises:
            GRPCError: INTERNAL: the message does not decode.
        """
        if self._read:
            return None
        self._read = True
        data, self.stream.payload = self.stream.payload, b""
        try:
            return self._link.server.codec.decode(data, self._handler.request_type)
        except Exception as error:  # whatever a codec makes of bad bytes
            log.info("%s: %s: the request does not decode: %r", self._link.peer, self.route, error)
            raise GRPCError(Status.INTERNAL, "the request does not decode") from error

    async def send_message(self, message: Any) -> None:
        """Send the answer: the only one of a unary call, one of several of a streaming one.

        Unary: it leaves when the handler has ended well; a checkpoint only
        while the peer takes too little of what waits for it.  Streaming:
        returns when the message has been written; a cancel may come while a
        part of it has, and the call is then reset.
        """
        link = self._link
        self._request_done()
        # What is counted already is in memory: to wait with it would help nobody.
        while not self.size and link.backlogged:
            await link.wait_room()
        data = link.server.codec.encode(message, self._handler.reply_type)
        if self._handler.cardinality.server_streaming:
            if not self._over:
                self._part_written = trio.Event()
                link.send(self, data)
                await self._part_written.wait()
        elif self._reply is not None:
            raise RuntimeError("a unary call has one answer")
        else:
            self._reply = data

    @property
    def peer(self) -> MemoryShare:
        """What is held for the peer; its ``allowance`` says how large the answer may be."""
        return self._link.memory

    def hold(self, size: int) -> None:
        """Count the answer, of about so many bytes, that the handler has in hand."""
        if change := size - self.size:
            self.size = size
            self._link.memory.add(unsent=change)

    async def wait_room(self) -> None:
        """Wait until an answer may be made; returns at once if there was no reason to wait."""
        while self._link.backlogged:
            await self._link.wait_room()

    def on_undelivered(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called if the good answer certainly never reaches the peer.

        That is: the call is reset, times out or fails, or the connection is
        lost, before the last byte of the answer was taken for writing.  It is
        called once, synchronously, when the handler has ended, and must not
        raise.  There is one per call: a later one replaces it.
        """
        self._undelivered = callback

    # The call's life ------------------------------------------------------------

    async def run(self, scope: trio.CancelScope) -> None:
        """Run the handler and queue its answer, or its error.

        ``scope`` is around this, and is the call's until it returns: it is
        cancelled when the peer leaves the call, and has its deadline.  Raises
        no ``Exception``; if it is cancelled, see :meth:`cancelled`.
        """
        self._scope = scope
        timed = self._deadline != math.inf
        if timed:
            scope.deadline = self._deadline
        try:
            if self._over:
                return
            await self._handler.func(self)
            self._answer()
        except GRPCError as error:
            self._refuse(error.status, error.message)
        except Exception as error:
            self._crashed(error)
        except BaseExceptionGroup as group:
            # A handler's nursery met an error and a cancel from outside at once.
            errors, rest = group.split(Exception)
            if errors is not None:
                self._crashed(errors)
            if rest is not None:
                raise rest from None
        finally:
            self._link.running -= 1
            self._request_done()
            self._reply = self._scope = None
            if timed:
                scope.deadline = math.inf
            if not self._queued:
                self._settle()

    def cancelled(self) -> None:
        """The scope of :meth:`run` has caught a cancel: answer, if that is still wanted."""
        if not self._over:
            self._refuse(Status.CANCELLED, "Timeout expired")

    def _answer(self) -> None:
        if self._over:
            return
        link = self._link
        if self._handler.cardinality.server_streaming:
            self._queued = link.refuse(self.stream, Status.OK, None)
            if self._queued:
                link.settle(self)
        elif self._reply is None:
            log.error("%s: the handler of %s gave no answer", link.peer, self.route)
            self._refuse(Status.INTERNAL, "internal error")
        else:
            self.hold(len(self._reply))
            self._queued = True
            link.respond(self, self._reply)

    def lose(self) -> None:
        """The peer has reset the call, or is gone."""
        if self._over:
            return
        self._over = True
        if self._part_written is not None:
            # For handlers that shield themselves: they must not wait for ever.
            self._part_written.set()
        if self._queued:
            if self.stream.local_ended:
                # All of it was taken for writing: it may have arrived.
                self._link.settle(self)
            else:
                self._settle()
        elif self._scope is not None:
            self._scope.cancel(reason="the peer has left the call")

    def _request_done(self) -> None:
        if size := self._request_size:
            self._request_size = 0
            self._link.memory.add(working=-size)

    def _on_written(self) -> None:
        if self._part_written is not None:
            self._part_written.set()
        else:
            self._link.settle(self)

    def _refuse(self, status: Status, message: str | None) -> None:
        self._link.refuse(self.stream, status, message)

    def _crashed(self, error: BaseException) -> None:
        log.error("%s: the handler of %s failed", self._link.peer, self.route, exc_info=error)
        self._refuse(Status.INTERNAL, "internal error")

    def _settle(self) -> None:
        """It is certain that the good answer never leaves."""
        self._link.settle(self)
        callback, self._undelivered = self._undelivered, None
        if callback is not None:
            try:
                callback()
            except Exception:
                log.exception("%s: on_undelivered of %s failed", self._link.peer, self.route)
