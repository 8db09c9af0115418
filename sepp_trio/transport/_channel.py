"""The client's side of gRPC: unary calls over one HTTP/2 connection at a time."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import trio
from grpclib.const import Cardinality
from grpclib.metadata import encode_metadata
from tricycle import open_service_nursery

from ._calls import PendingCall, TaskCall
from ._dispatch import DialConfig, Dispatcher
from ._errors import CallError
from ._headers import encode_block
from ._http2 import Http2Config
from ._method import Method, RequestBlocks
from ._stub import Codec, MessageCodec, StubCall

if TYPE_CHECKING:
    from grpclib.metadata import Deadline

Req = TypeVar("Req")
Resp = TypeVar("Resp")

Metadata = Mapping[str, "str | bytes"] | Iterable[tuple[str, "str | bytes"]]

DEFAULT_MAX_RECEIVE = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """A channel at one moment.

    ``state``: "ready" (connected), "connecting", "idle" (no connection, and
    nobody waits for one) or "closed".  ``connections`` counts those made, with
    the first; ``last_dial_error`` is that of the current outage.
    """

    state: Literal["ready", "connecting", "idle", "closed"]
    calls_open: int
    calls_waiting: int
    connections: int
    connections_open: int
    failed_dials: int
    last_dial_error: str | None
    bytes_sent: int
    bytes_received: int
    keepalive_interval: float


class Gathering:
    """See :attr:`Channel.in_one_write`."""

    __slots__ = ("_dispatcher",)

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def __enter__(self) -> None:
        self._dispatcher.gathering = True

    def __exit__(self, *_: object) -> None:
        self._dispatcher.gathered()


class Channel:
    """Makes unary calls.  Comes from :func:`open_channel`.

    A call's deadline on the wire is the nearer of its own ``timeout`` and, for
    :meth:`unary`, the caller's effective deadline.  Calls that are known not
    to have been processed (refused, above the last stream of a GOAWAY, not yet
    begun when the connection was lost) are repeated unseen.  Messages wait
    with their callers, not in a buffer: whoever waits for its answer is held
    back as the connection is.
    """

    def __init__(
        self, dispatcher: Dispatcher, headers: Callable[[str], bytes], codec: Codec
    ) -> None:
        self._dispatcher = dispatcher
        self._headers_for = headers
        self._codec = codec
        self.in_one_write = Gathering(dispatcher)
        """What is started in a ``with`` block of it, which must not wait, leaves in one write."""
        self._blocks: dict[str, RequestBlocks] = {}
        self._stub_methods: dict[tuple[str, Any, Any], Method[Any, Any]] = {}

    @trio.lowlevel.enable_ki_protection
    async def unary(
        self,
        method: Method[Req, Resp],
        request: Req,
        *,
        timeout: float | None = None,
        urgent: bool = False,
        long_poll: bool = False,
        extra_block: bytes = b"",
    ) -> Resp:
        """Make a call and wait for its reply.  Always a checkpoint.

        Args:
            timeout: the call's own deadline in seconds from now.  At its end,
                DEADLINE_EXCEEDED; zero or less fails without sending.
            urgent: go before calls that are not, wherever calls wait.
            long_poll: the answer may take its time; no sign of a dead connection.
                Where the peer allows few calls at once, these leave some to others.
            extra_block: encoded header fields beside those of every call.

        Raises:
            CallError: the call failed.
            Cancelled: the call was undone: it never left, or was reset.  The
                server may have processed it.
        """
        if self._dispatcher.closed:
            await trio.lowlevel.checkpoint()
        blocks = self._blocks.get(method.route) or self._blocks_of(method.route)
        if extra_block:
            blocks = RequestBlocks(blocks.untimed + extra_block)
        call = TaskCall(
            self._dispatcher,
            method,
            method.encode(request),
            blocks,
            urgent,
            long_poll,
        )
        call.task = trio.lowlevel.current_task()
        # Here and not in a method of the call: each coroutine on the way costs.
        self._dispatcher.start(
            call, timeout, trio.current_effective_deadline(), trio.current_time()
        )
        reply: Resp
        reply, error = await trio.lowlevel.wait_task_rescheduled(call.abort)
        if error is None:
            return reply
        try:
            await call.fail(error)
        finally:
            del error  # no cycle through the traceback

    @trio.lowlevel.enable_ki_protection
    def start_unary(
        self,
        method: Method[Req, Resp],
        request: Req,
        on_done: Callable[[Resp | None, CallError | None], None],
        *,
        timeout: float | None,
        urgent: bool = False,
        long_poll: bool = False,
        now: float | None = None,
    ) -> PendingCall:
        """Start a call whose result goes to ``on_done(reply, error)``.  Synchronous.

        ``on_done`` is called exactly once, from one of the channel's tasks and
        never from here, unless the call is cancelled before.  It must not
        raise and not block.  Cancel scopes of the caller do not matter, only
        ``timeout`` does.  ``now`` is Trio's time, if the caller has just asked for it.

        Raises:
            ChannelClosed: the channel was closed; ``on_done`` is not called.
        """
        call = PendingCall(
            self._dispatcher,
            method,
            method.encode(request),
            self._blocks.get(method.route) or self._blocks_of(method.route),
            urgent,
            long_poll,
        )
        call.on_done = on_done
        self._dispatcher.start(call, timeout, math.inf, trio.current_time() if now is None else now)
        return call

    def request(
        self,
        route: str,
        cardinality: Cardinality,
        request_type: Any,
        response_type: Any,
        *,
        timeout: float | None = None,
        deadline: Deadline | None = None,
        metadata: Metadata | None = None,
    ) -> StubCall:
        """A call for generated stubs, which need grpclib's interface; unary ones only.

        Raises:
            NotImplementedError: the method streams.
        """
        if cardinality is not Cardinality.UNARY_UNARY:
            raise NotImplementedError(f"{route}: only unary methods are supported")
        if deadline is not None:
            # grpclib's deadlines follow the system's clock, ours Trio's.
            left = deadline.time_remaining()
            timeout = left if timeout is None else min(timeout, left)
        key = (route, request_type, response_type)
        method = self._stub_methods.get(key)
        if method is None:
            codec = self._codec
            method = self._stub_methods[key] = Method(
                route,
                lambda message: codec.encode(message, request_type),
                lambda data: codec.decode(data, response_type),
            )
        extra = encode_block(_metadata_fields(metadata)) if metadata else b""
        return StubCall(partial(self.unary, method, timeout=timeout, extra_block=extra))

    @property
    def max_receive_message_bytes(self) -> int:
        """The largest answer that is taken."""
        return self._dispatcher.max_message

    async def wait_ready(self) -> None:
        """Wait until the channel is connected, however many dials it takes.  A checkpoint.

        Raises:
            ChannelClosed: the channel was closed.
        """
        await self._dispatcher.wait_ready()

    def statistics(self) -> ChannelStatistics:
        """The channel's state and counters."""
        d = self._dispatcher
        state: Literal["ready", "connecting", "idle", "closed"]
        if d.closed:
            state = "closed"
        elif d.link is not None:
            state = "ready"
        else:
            state = "connecting" if d.dialling else "idle"
        return ChannelStatistics(
            state=state,
            calls_open=d.calls_open(),
            calls_waiting=sum(map(len, d.waiting)),
            connections=d.connections,
            connections_open=len(d.links),
            failed_dials=d.failed_dials,
            last_dial_error=None if d.last_dial_error is None else d.last_dial_error.reason,
            bytes_sent=d.bytes_sent,
            bytes_received=d.bytes_received,
            keepalive_interval=d.keepalive_interval,
        )

    def _blocks_of(self, route: str) -> RequestBlocks:
        blocks = self._blocks.get(route)
        if blocks is None:
            blocks = self._blocks[route] = RequestBlocks(self._headers_for(route))
        return blocks


@asynccontextmanager
async def open_channel(
    connect: Callable[[], Awaitable[trio.abc.Stream]],
    *,
    authority: str,
    scheme: Literal["http", "https"] = "http",
    metadata: Metadata = (),
    user_agent: str = "",
    codec: Codec | None = None,
    connect_timeout: float = 5.0,
    max_receive_message_bytes: int = DEFAULT_MAX_RECEIVE,
    keepalive_interval: float = 10.0,
    keepalive_timeout: float = 4.0,
) -> AsyncIterator[Channel]:
    """Connect, and keep connected as long as calls need it.

    The connection serves the body's ``finally`` blocks as well: its tasks are
    cancelled only after the body has ended.  Calls left then get ChannelClosed.

    Args:
        connect: makes a connected stream: :func:`tcp_connector`,
            :func:`unix_connector`, or any callable; used again to reconnect.
        authority: the server's name in requests, as ``host:port``.
        metadata: sent with every call; never put into tables or logs.
        codec: for stubs, see :meth:`Channel.request`; by default messages
            encode themselves.
        connect_timeout: seconds for everything until the server's SETTINGS.
        max_receive_message_bytes: a larger answer is RESOURCE_EXHAUSTED.
        keepalive_interval: seconds of silence after which a PING is sent.
        keepalive_timeout: seconds without a byte after it, and the connection is dead.

    Raises:
        DialError: the first connection could not be made.
        ValueError: a name or value cannot be sent as a header.
    """
    first = [(":method", "POST"), (":scheme", scheme)]
    rest = [
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        *([("user-agent", user_agent)] if user_agent else []),
        *_metadata_fields(metadata),
    ]
    for name, value in rest:
        if not (value.isascii() and value.isprintable()):
            raise ValueError(f"{name}: cannot be sent as a header")

    def headers(route: str) -> bytes:
        return encode_block([*first, (":path", route), *rest])

    dispatcher = Dispatcher(
        DialConfig(connect, connect_timeout, keepalive_interval, keepalive_timeout),
        Http2Config(max_message=max_receive_message_bytes),
    )
    failure: BaseException | None = None
    async with open_service_nursery() as nursery:
        # What the body raises is carried around the nursery, which would wrap
        # it in a group.
        try:
            dispatcher.adopt(await dispatcher.dial(), nursery)
            nursery.start_soon(dispatcher.timers.run)
            nursery.start_soon(dispatcher.run, nursery)
            yield Channel(dispatcher, headers, codec or MessageCodec())
        except BaseException as error:
            failure = error
        finally:
            dispatcher.close()
            nursery.cancel_scope.cancel()
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # no cycle through the traceback


def _metadata_fields(metadata: Metadata) -> list[tuple[str, str]]:
    fields: list[tuple[str, str]] = list(encode_metadata(metadata))  # type: ignore[arg-type]
    for name, value in fields:
        if name.startswith(("grpc-", ":")) or name != name.lower():
            raise ValueError(f"metadata {name!r}: not a name for metadata")
        if not (value.isascii() and value.isprintable()):
            raise ValueError(f"metadata {name!r}: cannot be sent as a header")
    return fields
