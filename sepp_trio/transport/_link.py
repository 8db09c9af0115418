"""One live connection: its reader, its writer and its watch."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Protocol, cast

import trio

from ._client_role import ClientConnection
from ._errors import DialError
from ._frames import ConnectionFault, code_name
from ._pipe import pipe_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ._calls import Call
    from ._http2 import Http2Config
    from ._sending import Queue

logger = logging.getLogger("sepp_trio.transport")

READ_SIZE = 64 * 1024
_LARGE_READ = 256 * 1024
"""For a peer that had filled the last one: each read is a turn of the loop."""
_UNREAD_LIMIT = 64 * 1024
# Calls are written as they are made after so many turns of the writer for one or two each, and so
# many times between two reads: a worker with one slot acks a job and asks for the next.
_LONE_TURNS = 3
_MOST_FLUSHES = 2
_FAREWELL = 0.5
_PING = b"sepptrio"
_SILENT_END = "the server closed the connection without a word of HTTP/2 (it may speak TLS)"


class LinkOwner(Protocol):
    """What a link tells its channel."""

    keepalive_interval: float
    keepalive_timeout: float
    unanswered_interval: float
    bytes_sent: int
    bytes_received: int

    def link_leaving(self, link: Link) -> None:
        """The link takes no new calls any more.  Told again and again until it ends."""

    def link_lost(self, link: Link, calls: list[Call]) -> None:
        """The link is gone, ``link.reason`` says why; these calls had begun on it."""


class Link:
    """Drives one HTTP/2 connection over a Trio stream.

    Only the writer task waits for the stream to take bytes, which no caller can
    cancel: they are never cut off in the middle.  Whatever callers do is
    synchronous: queue, or undo, and wake the writer.  While calls come one at a
    time, though, each is written as it is made: the writer's turn would cost as
    much as the call.
    """

    def __init__(
        self,
        owner: LinkOwner,
        stream: trio.abc.Stream,
        config: Http2Config,
        waiting: tuple[Queue, ...],
    ) -> None:
        self.core = ClientConnection(config, waiting, self.wake)
        self.reason = ""
        """Why the connection ended, for people; empty while it lives."""
        self._owner = owner
        self._stream = stream
        self._waiting = waiting
        self.parked: trio.lowlevel.Task | None = None
        """The writer, while it waits for :meth:`wake`."""
        self.at_once = False
        """Whether the next call is to be written by :meth:`flush`."""
        self._pipe = pipe_of(stream)
        self._feeding = False
        # What the last write by flush has left over.
        self._unsent = b""
        # How often flush has written since the last read, and how many turns of the writer in
        # a row found no more than two calls.
        self._flushes = 0
        self._lone_turns = _LONE_TURNS
        self._drained: trio.Event | None = None
        self._heard = trio.current_time()
        self._reads = 0
        self.check_at = math.inf
        """When the connection is next asked for a sign of life, unless one comes."""
        self._watch_scope: trio.CancelScope | None = None
        self._scope: trio.CancelScope | None = None

    async def handshake(self) -> None:
        """Exchange HTTP/2's first frames.  A checkpoint; if cancelled, close the stream.

        Raises:
            DialError: the peer does not speak HTTP/2, or left.
        """
        core, seen = self.core, b""
        try:
            data = core.data_to_send()
            self._owner.bytes_sent += len(data)
            await self._stream.send_all(data)
            while not core.settings_received:
                data = bytearray(await self._stream.receive_some(READ_SIZE))
                seen = (seen + data)[:16]
                self._owner.bytes_received += len(data)
                if not data:
                    raise DialError(_what_spoke(seen) or _SILENT_END)
                core.feed(data)
        except ConnectionFault as fault:
            reason = _what_spoke(seen) or f"the server does not speak HTTP/2 ({fault.reason})"
            raise DialError(reason) from None
        except DialError:
            raise
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError) as error:
            reason = _what_spoke(seen) or "the server broke the connection"
            raise DialError(reason) from error
        except Exception as error:
            # A stream of the user's own may raise anything.
            raise DialError(_describe(error)) from error
        if not core.accepting:
            raise DialError("the server is going away")

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Serve the connection until it ends.  Closes the stream, whatever happens."""
        try:
            async with trio.open_nursery() as nursery:
                self._scope = nursery.cancel_scope
                nursery.start_soon(self._write)
                nursery.start_soon(self._read)
                nursery.start_soon(self._watch)
        finally:
            self.end("the channel is closed")
            self._owner.link_lost(self, self.core.lost())  # type: ignore[arg-type]
            await close_quietly(self._stream)

    def end(self, reason: str) -> None:
        """Give the connection up, at once.  Synchronous; only the first reason counts."""
        self.reason = self.reason or reason
        self.core.accepting = False
        if self._scope is not None:
            self._scope.cancel()

    def wake(self) -> None:
        """There may be something to write."""
        task = self.parked
        # The reader looks itself when it is through.
        if task is not None and not self._feeding:
            self.parked = None
            trio.lowlevel.reschedule(task)

    def flush(self, now: float) -> None:
        """Write what is queued, as far as it goes; while the writer is parked."""
        self._flushes += 1
        self.at_once &= self._flushes < _MOST_FLUSHES
        data = self._take(now)
        try:
            sent = self._pipe.write_now(data)
        except Exception as error:
            self.end(_describe(error))
            return
        if sent < len(data):
            self._unsent = bytes(data[sent:])
            self.wake()
        elif self.core.has_output():
            self.wake()

    def watch_short_call(self, now: float) -> None:
        """A call that should be answered soon has been queued."""
        due = now + self._owner.unanswered_interval
        if due < self.check_at:
            self.check_at = due
            if self._watch_scope is not None:
                self._watch_scope.deadline = due

    # Tasks ------------------------------------------------------------------

    def _abort(self, _: object) -> trio.lowlevel.Abort:
        self.parked = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _take(self, now: float) -> bytearray:
        core = self.core
        core.now = now
        data = core.data_to_send()
        self._owner.bytes_sent += len(data)
        if not core.accepting:
            self._leave()
        return data

    @trio.lowlevel.enable_ki_protection
    async def _write(self) -> None:
        core, pipe = self.core, self._pipe
        data: bytes | bytearray
        while True:
            if self._unsent or core.has_output():
                if self._unsent:
                    data, self._unsent = self._unsent, b""
                else:
                    first = core.next_id
                    data = self._take(trio.current_time())
                    if self._flushes or core.next_id > first + 4:
                        self._lone_turns = 0
                    elif core.next_id > first:
                        self._lone_turns += 1
                self.at_once = False
                try:
                    await pipe.send_all(data)
                except Exception as error:
                    self.end(_describe(error))
                    return
                if self._drained is not None and core.control_backlog <= _UNREAD_LIMIT:
                    self._drained.set()
                if pipe.writes_at_once and core.has_output():
                    await trio.lowlevel.checkpoint()
            elif core.closed or not (core.accepting or core.streams):
                self.end(self.reason or "the server said goodbye")
                return
            else:
                self.parked = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._abort)

    @trio.lowlevel.enable_ki_protection
    async def _read(self) -> None:
        core, owner, receive = self.core, self._owner, self._pipe.receive
        size = READ_SIZE
        while True:
            try:
                data = await receive(size)
            except Exception as error:
                self.end(_describe(error))
                return
            if not data:
                self.end(self.reason or "the server closed the connection")
                return
            size = READ_SIZE if len(data) < READ_SIZE else _LARGE_READ
            owner.bytes_received += len(data)
            self._heard = trio.current_time()
            self._reads += 1
            self._feeding = True
            self.at_once = False  # what callbacks ask for leaves in one write
            try:
                core.feed(data)
            except ConnectionFault as fault:
                self._feeding = False
                self._leave_for_fault(fault)
                return
            self._feeding = False
            self.at_once = self._lone_turns >= _LONE_TURNS and self._pipe.writes_at_once
            self._flushes = 0
            if not core.accepting:
                self._leave()
                self.wake()
            elif core.has_output():
                if self.parked is not None:
                    if self._pipe.writes_at_once:
                        self.flush(self._heard)
                    else:
                        self.wake()
            else:
                continue
            if core.control_backlog > _UNREAD_LIMIT:
                # The peer asks for answers and does not read them.
                self._drained = trio.Event()
                await self._drained.wait()
                self._drained = None

    def _leave(self) -> None:
        said = self.core.goaway
        if said is not None and not self.reason:
            debug = said.debug.decode(errors="replace")[:200]
            self.reason = f"the server said goodbye ({code_name(said.code)} {debug}".rstrip() + ")"
        self._owner.link_leaving(self)

    def _leave_for_fault(self, fault: ConnectionFault) -> None:
        # GOAWAY gets a moment to leave, the calls wait no longer.
        self.reason = self.reason or f"the server broke the protocol ({fault.reason})"
        self._owner.link_lost(self, self.core.lost())  # type: ignore[arg-type]
        assert self._scope is not None
        self._scope.deadline = trio.current_time() + _FAREWELL
        self.wake()

    # Keep-alive -------------------------------------------------------------

    @trio.lowlevel.enable_ki_protection
    async def _watch(self) -> None:
        """Ask for a sign of life after silence, and end the connection without one."""
        while True:
            self.check_at = self._quiet_until()
            with trio.CancelScope(deadline=self.check_at) as self._watch_scope:
                await trio.sleep_forever()
            now = trio.current_time()
            if now < self._quiet_until():
                continue
            reads = self._reads
            self.core.ping(_PING)
            self.wake()
            self.check_at = -math.inf  # nothing shortens this wait
            await trio.sleep(self._owner.keepalive_timeout)
            if self._reads == reads:
                self.end(f"no sign of life for {trio.current_time() - self._heard:.1f} s")
                return

    def _quiet_until(self) -> float:
        """When to ask, if nothing is heard and nothing answered until then."""
        due = self._heard + self._owner.keepalive_interval
        oldest = self._oldest_short_call()
        if oldest is not None:
            due = min(due, max(oldest, self._heard) + self._owner.unanswered_interval)
        return due

    def _oldest_short_call(self) -> float | None:
        oldest = []
        for calls in (self.core.streams.values(), *self._waiting):
            # In order of their start, or near enough.
            for call in cast("Iterable[Call]", calls):
                if not (call.long_poll or call.done):
                    oldest.append(call.started)
                    break
        return min(oldest, default=None)


async def close_quietly(stream: trio.abc.Stream) -> None:
    """Close a stream at once.  What it raises then is of use to nobody: it is logged."""
    try:
        await trio.aclose_forcefully(stream)
    except Exception as error:
        logger.warning("a connection could not be closed: %s", _describe(error))


def _describe(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error, trio.BrokenResourceError) else None
    text = str(cause or error)
    return f"{type(cause or error).__name__}: {text}" if text else type(error).__name__


def _what_spoke(first: bytes) -> str | None:
    """What is on the other end, if its first bytes say that it is not HTTP/2."""
    if first.startswith(b"HTTP/"):
        return "the server speaks HTTP/1, not HTTP/2"
    if first[:2] in (b"\x15\x03", b"\x16\x03"):
        return "the server speaks TLS, and the connection does not"
    if first.startswith(b"SSH-"):
        return "the server speaks SSH, not HTTP/2"
    return None
