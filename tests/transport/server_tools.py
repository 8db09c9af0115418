"""What the tests of the server role share: a small service, and ways to reach it."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError

from sepp_trio.transport.server import GrpcServer, ServerCall, ServerConfig
from tests.transport.hostile import RawClient

PREFIX = "/test.Service/"
ECHO, FAIL, CRASH, PARK, WATCH, STUBBORN = (
    PREFIX + name for name in ("Echo", "Fail", "Crash", "Park", "Watch", "Stubborn")
)


class BytesCodec:
    """Messages are their bytes; one that starts with ``bad`` does not decode."""

    def encode(self, message: bytes, message_type: type[bytes]) -> bytes:
        return bytes(memoryview(message))

    def decode(self, data: bytes, message_type: type[bytes]) -> bytes:
        if data.startswith(b"bad"):
            raise ValueError("a message that does not decode")
        return bytes(data)


class Service:
    """Handlers that do what their names say, and tell the test of it."""

    def __init__(self) -> None:
        self.alive = 0
        self.most_alive = 0
        self.started: list[bytes] = []
        self.cancelled: list[bytes] = []
        self.undelivered: list[bytes] = []
        self.release = trio.Event()
        self.failure: BaseException = GRPCError(Status.NOT_FOUND, "job not found")

    async def _request(self, call: ServerCall) -> bytes:
        message = await call.recv_message()
        assert isinstance(message, bytes)
        self.started.append(message)
        return message

    async def echo(self, call: ServerCall) -> None:
        message = await self._request(call)
        call.on_undelivered(lambda: self.undelivered.append(message))
        await call.send_message(message)

    async def fail(self, call: ServerCall) -> None:
        await self._request(call)
        raise self.failure

    async def park(self, call: ServerCall) -> None:
        """Wait for ``release``, then echo."""
        message = await self._request(call)
        call.on_undelivered(lambda: self.undelivered.append(message))
        self.alive += 1
        self.most_alive = max(self.most_alive, self.alive)
        try:
            await self.release.wait()
        except trio.Cancelled:
            self.cancelled.append(message)
            raise
        finally:
            self.alive -= 1
        await call.send_message(message)

    async def stubborn(self, call: ServerCall) -> None:
        """Wait for ``release`` whatever cancels the call."""
        message = await self._request(call)
        self.alive += 1
        self.most_alive = max(self.most_alive, self.alive)
        with trio.CancelScope(shield=True):
            await self.release.wait()
        self.alive -= 1
        await call.send_message(message)

    async def watch(self, call: ServerCall) -> None:
        """Send the request back byte by byte, then wait for ``release``."""
        message = await self._request(call)
        call.on_undelivered(lambda: self.undelivered.append(message))
        for byte in message:
            await call.send_message(bytes((byte,)))
        await self.release.wait()

    def handlers(self) -> Mapping[str, Handler]:
        unary, streaming = Cardinality.UNARY_UNARY, Cardinality.UNARY_STREAM
        return {
            ECHO: Handler(self.echo, unary, bytes, bytes),
            FAIL: Handler(self.fail, unary, bytes, bytes),
            PARK: Handler(self.park, unary, bytes, bytes),
            STUBBORN: Handler(self.stubborn, unary, bytes, bytes),
            WATCH: Handler(self.watch, streaming, bytes, bytes),
        }


class Gate:
    """A full socket, while it is shut: writes arrive, but do not return."""

    def __init__(self) -> None:
        self.shut = False
        self._waiting = trio.lowlevel.ParkingLot()

    def open(self) -> None:
        self.shut = False
        self._waiting.unpark_all()

    def guard(self, stream: trio.testing.MemorySendStream) -> None:
        deliver = stream.send_all_hook
        assert deliver is not None

        async def passed() -> None:
            await deliver()
            while self.shut:
                await self._waiting.park()

        stream.send_all_hook = passed


class Harness:
    """A server and the clients that a test opens to it."""

    def __init__(self, nursery: trio.Nursery, service: Service, server: GrpcServer) -> None:
        self.nursery = nursery
        self.service = service
        self.server = server

    def stream(self, gate: Gate | None = None) -> trio.StapledStream[Any, Any]:
        """A new connection in memory: the client's end of it."""
        ours, theirs = trio.testing.memory_stream_pair()
        if gate is not None:
            gate.guard(theirs.send_stream)
        self.nursery.start_soon(self.server.serve_stream, theirs)
        return ours

    async def client(self, values: Mapping[int, int] | None = None, **options: Any) -> RawClient:
        """A raw client in memory, past its handshake."""
        credit = options.pop("credit", 0)
        client = RawClient(self.stream(options.pop("gate", None)), **options)
        await client.start(values, credit=credit)
        return client


@asynccontextmanager
async def open_harness(
    config: ServerConfig | None = None, *, authorize: Callable[..., None] | None = None
) -> AsyncIterator[Harness]:
    """A server of ``Service``; everything still open at the end is cancelled."""
    service = Service()
    server = GrpcServer(
        service.handlers(),
        codec=BytesCodec(),
        config=config or ServerConfig(),
        authorize=authorize,
    )
    async with trio.open_nursery() as nursery:
        yield Harness(nursery, service, server)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_port(
    server: GrpcServer, context: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """The server on a loopback port."""
    from sepp_trio.transport.server import tls_listener

    listeners: list[Any] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port: int = listeners[0].socket.getsockname()[1]
    if context is not None:
        listeners = [tls_listener(listener, context) for listener in listeners]
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, listeners)
        yield port
        nursery.cancel_scope.cancel()
