"""A gRPC server on Trio: handlers in, connections served until a graceful stop."""

from __future__ import annotations

import ssl
from functools import partial
from typing import TYPE_CHECKING, Any

import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from ._server_answers import AnswerBlocks
from ._server_call import log
from ._server_config import ServerConfig
from ._server_link import ServerLink
from ._server_memory import Memory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from grpclib.const import Handler

    from ._blocks import Request
    from ._stub import Codec

    Authorize = Callable[[str, Sequence[tuple[str, str]]], None]
    Listener = trio.abc.Listener[Any]


class GrpcServer:
    """Serves handlers, as ``ServiceBase.__mapping__()`` gives them, to any number of peers.

    Args:
        handlers: by route; unary or server-streaming.
        codec: for the messages of all handlers.
        config: limits.
        authorize: called with route and headers before anything else of a
            call of a known service is looked at; refuses with ``GRPCError``.

    Raises:
        ValueError: a handler takes a stream of requests.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        codec: Codec,
        config: ServerConfig | None = None,
        authorize: Authorize | None = None,
    ) -> None:
        for route, handler in handlers.items():
            if handler.cardinality.client_streaming:
                raise ValueError(f"{route} takes a stream of requests: that is not served")
        self.codec = codec
        self.config = config or ServerConfig()
        self.blocks = AnswerBlocks()
        self.memory = Memory(self.config)
        self.draining = trio.Event()
        """Set by :meth:`start_drain`; handlers that wait for something may wait for it, too."""
        self._handlers = dict(handlers)
        self._services = {route.rpartition("/")[0] for route in handlers}
        self._authorize = authorize
        self._links: set[ServerLink] = set()
        self._handshakes: set[trio.CancelScope] = set()
        self._open = 0
        self._full = False

    async def serve_stream(self, stream: trio.abc.Stream) -> None:
        """Serve one connection to its end, and close it.

        Returns when the peer has left or was given up, or after a graceful
        stop.  Raises nothing for what a peer does.  A cancel ends the calls
        and closes the stream at once.
        """
        peer = _peer_name(stream)
        if not self.draining.is_set() and self._has_room(peer):
            self._open += 1
            try:
                await self._serve(stream, peer)
            finally:
                self._open -= 1
        await trio.aclose_forcefully(stream)

    async def serve(
        self,
        listeners: list[Listener],
        *,
        task_status: trio.TaskStatus[list[Listener]] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve all connections of listeners until a graceful stop is over.

        The listeners are closed as soon as the stop begins.  A cancel ends
        everything at once.
        """
        async with trio.open_nursery() as connections, trio.open_nursery() as accepting:
            accepting.start_soon(
                partial(
                    trio.serve_listeners,
                    self.serve_stream,
                    listeners,
                    handler_nursery=connections,
                )
            )
            task_status.started(listeners)
            await self.draining.wait()
            accepting.cancel_scope.cancel(reason="the server stops")

    def start_drain(self) -> None:
        """Begin a graceful stop: no new connections, goodbyes to the present ones.

        Calls that are open are finished, for ``drain_timeout`` seconds at
        most; then :meth:`serve` and :meth:`serve_stream` return.  Idempotent.
        """
        if not self.draining.is_set():
            self.draining.set()
            deadline = trio.current_time() + self.config.drain_timeout
            for scope in self._handshakes:
                scope.cancel(reason="the server stops")
            for link in self._links:
                link.start_drain(deadline)

    def admit(self, request: Request) -> Handler:
        """The handler for a request.

        Raises:
            GRPCError: there is none, or the request is not authorized.
        """
        route = request.path
        handler = self._handlers.get(route)
        if handler is None and route.rpartition("/")[0] not in self._services:
            raise GRPCError(Status.UNIMPLEMENTED)
        if self._authorize is not None:
            self._authorize(route, request.fields)
        if handler is None:
            raise GRPCError(Status.UNIMPLEMENTED)
        return handler

    async def _serve(self, stream: trio.abc.Stream, peer: str) -> None:
        try:
            if isinstance(stream, trio.SSLStream) and not await self._handshake(stream, peer):
                return
            link = ServerLink(self, stream, peer)
            self._links.add(link)
            try:
                await link.run()
            finally:
                self._links.discard(link)
        except Exception:
            # A fault of this package: it must not reach the other connections.
            log.exception("%s: closed by an internal error", peer)

    async def _handshake(self, stream: trio.SSLStream[Any], peer: str) -> bool:
        with trio.move_on_after(self.config.handshake_timeout) as scope:
            self._handshakes.add(scope)
            try:
                await stream.do_handshake()
            except trio.BrokenResourceError as error:
                log.info("%s: closed: no TLS: %s", peer, error.__cause__ or error)
                return False
            finally:
                self._handshakes.discard(scope)
        if self.draining.is_set():
            return False
        if scope.cancelled_caught:
            log.info("%s: closed: no TLS handshake in time", peer)
            return False
        if stream.selected_alpn_protocol() not in (None, "h2"):
            log.info("%s: closed: it offers no h2 in ALPN", peer)
            return False
        return True

    def _has_room(self, peer: str) -> bool:
        full = self._open >= self.config.max_connections
        if full and not self._full:
            # Once, not for each of them.
            log.warning("%s: closed: all %d connections are taken", peer, self._open)
        self._full = full
        return not full


def tls_listener(
    listener: trio.abc.Listener[trio.SocketStream], context: ssl.SSLContext
) -> trio.SSLListener[trio.SocketStream]:
    """The listener with TLS on its connections: HTTP/2 by ALPN.

    Sets the context's ALPN protocols.  A client that offers protocols, but
    not h2, is turned away after the handshake; one that offers none is taken
    at its word.  Client certificates are the context's matter.
    """
    # http/1.1 is named so that a client which has only that can be told apart
    # from one that says nothing.
    context.set_alpn_protocols(["h2", "http/1.1"])
    return trio.SSLListener(listener, context, https_compatible=True)


def _peer_name(stream: Any) -> str:
    socket = getattr(getattr(stream, "transport_stream", stream), "socket", None)
    if socket is None:
        return "a peer in memory"
    try:
        address = socket.getpeername()
    except OSError:
        return "a peer that has left"
    if isinstance(address, tuple):
        host, port = address[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return "a local peer"
