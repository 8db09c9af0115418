"""Where calls wait, and how a connection for them is made and replaced."""

from __future__ import annotations

import logging
import math
import random
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import trio
from grpclib.const import Status

from ._errors import CallError, ChannelClosed, DialError
from ._frames import Code
from ._link import Link, close_quietly
from ._timers import Timers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ._calls import Call
    from ._client_role import ClientConnection
    from ._http2 import Http2Config
    from ._sending import Queue

logger = logging.getLogger("sepp_trio.transport")

_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5
_OF_USE = 1.0
_UNANSWERED = 2.0
# Servers take a call and its reset in one read for an attack; the real one
# ends the connection at the 21st.  So a reset keeps this distance.
_RESET_DISTANCE = 0.01
_MOST_REFUSALS = 8
_FIRST_REFUSAL_PAUSE = 0.005


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DialConfig:
    """How to connect, and what to do about silence; times in seconds."""

    connect: Callable[[], Awaitable[trio.abc.Stream]]
    connect_timeout: float
    keepalive_interval: float
    keepalive_timeout: float


class Dispatcher:
    """Owns the queues of waiting calls and the connection that serves them.

    Calls that have not begun belong to no connection: they stay here while
    connections come and go, and fail only when a dial fails.
    """

    def __init__(self, dial: DialConfig, http2: Http2Config) -> None:
        self.timers = Timers()
        self.waiting: tuple[Queue, ...] = (OrderedDict(), OrderedDict(), OrderedDict())
        """Urgent and normal calls and long polls that have not begun, first in first out."""
        self.link: Link | None = None
        self.links: set[Link] = set()
        """The current link and those that only end what they have."""
        self.closed = False
        self.gathering = False
        """Calls are only queued: whoever set it comes with :meth:`gathered`."""
        self.dialling = False
        self.connections = 0
        self.failed_dials = 0
        self.last_dial_error: DialError | None = None
        self.bytes_sent = 0
        self.bytes_received = 0
        self.keepalive_interval = dial.keepalive_interval
        self.keepalive_timeout = dial.keepalive_timeout
        self.unanswered_interval = _UNANSWERED
        self.max_message = http2.max_message
        self._dial_config = dial
        self._http2 = http2
        self._wanted = trio.Event()
        self._ready = trio.Event()
        self._ready_waiters = 0
        self._refused: set[_Repeat] = set()
        # Dials in a row that failed or brought a connection of no use.
        self._failures = 0
        self._not_before = 0.0
        self._linked_at = 0.0

    # Calls ------------------------------------------------------------------

    def start(self, call: Call, timeout: float | None, outer: float, now: float) -> None:
        """Set a call's deadlines and queue it.  ``outer`` is the effective one of its caller.

        Raises:
            ChannelClosed: nothing was done.
        """
        if self.closed:
            raise ChannelClosed(unprocessed=True)
        call.started = now
        call.deadline = outer
        if timeout is not None and timeout < math.inf:
            own = call.due = now + timeout
            if own < outer:
                call.deadline = own
            self.timers.add(call)
            if timeout <= 0:
                return  # never sent; the timer fails it in a moment
        self.submit(call, now)

    def submit(self, call: Call, now: float) -> None:
        """Queue a call; it leaves when the connection and the peer allow."""
        self.waiting[0 if call.urgent else 2 if call.long_poll else 1][call] = None
        link = self.link
        if link is None:
            self._wanted.set()
            return
        if link.parked is not None and not self.gathering:
            if link.at_once:
                link.flush(now)
            else:
                link.wake()
        if call.started + self.unanswered_interval < link.check_at and not call.long_poll:
            link.watch_short_call(call.started)

    def gathered(self) -> None:
        """Let what was queued while ``gathering`` leave, in one write."""
        self.gathering = False
        link = self.link
        if link is not None and link.parked is not None and link.core.has_output():
            if link.at_once:
                link.flush(trio.current_time())
            else:
                link.wake()

    def drop(self, call: Call) -> None:
        """Take a call back: it never leaves, or is reset where it has begun."""
        connection = call.connection
        if connection is None:
            self._queue_of(call).pop(call, None)
            return
        due = call.begun_at + _RESET_DISTANCE
        if call.local_ended and due > trio.current_time():
            self.timers.add(_LateReset(connection, call, due))
        else:
            connection.abandon(call)

    def reset(self, call: Call) -> None:
        """Take a call back, but not an answer to it that is under way."""
        if call.connection is None:
            self._queue_of(call).pop(call, None)
        else:
            call.connection.reset(call)

    def repeat(self, call: Call, *, refused: bool) -> bool:
        """Queue a call again that the peer has not taken up; False: often enough.

        ``refused``: by a peer that goes on, which is not asked again at once.
        """
        if self.closed:
            return False
        if refused:
            call.refusals += 1
            if call.refusals > _MOST_REFUSALS:
                return False
            pause = _FIRST_REFUSAL_PAUSE * 2**call.refusals * random.uniform(0.5, 1)
            repeat = _Repeat(self, call, trio.current_time() + pause)
            self._refused.add(repeat)
            self.timers.add(repeat)
            return True
        queue = self._queue_of(call)
        queue[call] = None
        queue.move_to_end(call, last=False)
        self._wanted.set()
        if self.link is not None:
            self.link.wake()
        return True

    def try_again(self, repeat: _Repeat) -> None:
        """The pause of a refused call is over."""
        self._refused.discard(repeat)
        if not repeat.call.done:
            self.submit(repeat.call, trio.current_time())

    # Links ------------------------------------------------------------------

    def link_leaving(self, link: Link) -> None:
        """See :class:`LinkOwner`."""
        if self.link is not link:
            return
        self.link = None
        if self.closed:
            return
        said = link.core.goaway
        if said is not None and said.code == Code.ENHANCE_YOUR_CALM:
            if b"too_many_pings" in said.debug:
                self.keepalive_interval *= 2
                self.unanswered_interval *= 2
            logger.warning(
                "the server closed the connection (ENHANCE_YOUR_CALM %s); "
                "keep-alive interval is now %g s",
                said.debug.decode(errors="replace")[:200],
                self.keepalive_interval,
            )
        else:
            logger.info("the connection takes no more calls: %s", link.reason or "it was lost")
        if link.core.answers or trio.current_time() - self._linked_at >= _OF_USE:
            self._failures = 0
        else:
            # It came up and was of no use: not again and again at once.
            self._back_off()
        self._wanted.set()

    def link_lost(self, link: Link, calls: list[Call]) -> None:
        """See :class:`LinkOwner`."""
        self.link_leaving(link)
        text = f"the connection was lost: {link.reason}"
        for call in calls:
            if not call.done:
                call.settle(None, CallError(Status.UNAVAILABLE, text, origin="connection"))

    async def dial(self) -> Link:
        """Connect once.  A checkpoint; a cancel leaves nothing open.

        Raises:
            DialError: it did not work.
        """
        config, stage, link = self._dial_config, "connection", None
        with trio.move_on_after(config.connect_timeout):
            try:
                stream = await config.connect()
            except DialError:
                raise
            except Exception as error:
                raise DialError(f"{type(error).__name__}: {error}") from error
            if not isinstance(stream, trio.abc.Stream):
                kind = type(stream).__name__
                raise DialError(f"connect() gave a {kind}, which is no trio.abc.Stream")
            stage = "HTTP/2 settings from the server"
            link = Link(self, stream, self._http2, self.waiting)
            try:
                await link.handshake()
            except BaseException:
                await close_quietly(stream)
                raise
            return link
        raise DialError(f"no {stage} within {config.connect_timeout:g} s")

    def adopt(self, link: Link, nursery: trio.Nursery) -> None:
        """Make a fresh link the current one and run it."""
        self.link = link
        self.links.add(link)
        self.connections += 1
        self._linked_at = trio.current_time()
        self.last_dial_error = None
        self._ready.set()
        nursery.start_soon(self._run_link, link)

    @trio.lowlevel.enable_ki_protection
    async def _run_link(self, link: Link) -> None:
        try:
            await link.run()
        finally:
            self.links.discard(link)

    @trio.lowlevel.enable_ki_protection
    async def run(self, nursery: trio.Nursery) -> None:
        """Connect whenever calls wait and there is no connection, until cancelled."""
        while True:
            while self.link is not None or not self._has_work():
                self._wanted = trio.Event()
                await self._wanted.wait()
            self.dialling = True
            await trio.sleep_until(self._not_before)
            try:
                link = await self.dial()
            except DialError as error:
                self._dial_failed(error)
            else:
                self.adopt(link, nursery)
            self.dialling = False

    async def wait_ready(self) -> None:
        """Wait until there is a connection, dialling as often as it takes.  A checkpoint.

        Raises:
            ChannelClosed: the channel was closed.
        """
        await trio.lowlevel.checkpoint()
        while self.link is None and not self.closed:
            self._ready = trio.Event() if self._ready.is_set() else self._ready
            self._ready_waiters += 1
            self._wanted.set()
            try:
                await self._ready.wait()
            finally:
                self._ready_waiters -= 1
        if self.closed:
            raise ChannelClosed(unprocessed=True)

    def calls_open(self) -> int:
        """How many calls have begun and are neither over nor withdrawn."""
        calls = (call for link in self.links for call in link.core.streams.values())
        return sum(not cast("Call", call).done for call in calls)

    def close(self) -> None:
        """Fail all calls.  What has begun is not reset: the connections are about to go."""
        self.closed = True
        self._ready.set()
        open_calls: list[Call] = []
        for link in self.links:
            open_calls += link.core.lost()  # type: ignore[arg-type]
        for call in open_calls:
            if not call.done:
                call.settle(None, ChannelClosed(unprocessed=False))
        for repeat in [*self._refused]:
            self.try_again(repeat)
        self._fail_waiting(lambda: ChannelClosed(unprocessed=True))

    def _queue_of(self, call: Call) -> Queue:
        return self.waiting[0 if call.urgent else 2 if call.long_poll else 1]

    def _has_work(self) -> bool:
        return any(self.waiting) or self._ready_waiters > 0

    def _back_off(self) -> None:
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(self._failures, 10))
        self._failures += 1
        self._not_before = trio.current_time() + pause * random.uniform(0.5, 1)

    def _dial_failed(self, error: DialError) -> None:
        self.failed_dials += 1
        self.last_dial_error = error
        self._back_off()
        logger.info("could not connect: %s", error.reason)
        text = f"could not connect: {error.reason}"
        # One error for each: a raised exception carries its traceback.
        self._fail_waiting(
            lambda: CallError(Status.UNAVAILABLE, text, origin="connection", unprocessed=True)
        )

    def _fail_waiting(self, error: Callable[[], CallError]) -> None:
        for queue in self.waiting:
            calls: list[Call] = list(queue)  # type: ignore[arg-type]
            queue.clear()
            for call in calls:
                if not call.done:  # one that was settled before may have undone it
                    call.settle(None, error())


class _Repeat:
    """A refused call that waits for its next try."""

    done = False

    def __init__(self, dispatcher: Dispatcher, call: Call, due: float) -> None:
        self._dispatcher = dispatcher
        self.call = call
        self.due = due

    def expired(self) -> None:
        self._dispatcher.try_again(self)


class _LateReset:
    """A call that was withdrawn just after it had left, and is reset a little later."""

    done = False

    def __init__(self, connection: ClientConnection, call: Call, due: float) -> None:
        self._connection = connection
        self._call = call
        self.due = due

    def expired(self) -> None:
        self._connection.abandon(self._call)
