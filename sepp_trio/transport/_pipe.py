"""How a connection reads and writes its stream.

Trio's socket streams make every read and write a checkpoint and try each read
before they wait for it, which for a lone call is half of its cost.  A
connection knows better: its reader always waits first, and its writer has its
own turn after a write.
"""

from __future__ import annotations

import os
import stat
import sys

import trio


class Pipe:
    """Any stream, as it is."""

    writes_at_once = False
    """Whether :meth:`write_now` is of any use, and :meth:`send_all` may be no checkpoint."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.receive = stream.receive_some
        self.send_all = stream.send_all

    def write_now(self, data: bytes | bytearray | memoryview) -> int:
        """Write what can be written without waiting: how many bytes.  Not for two at once.

        Raises:
            trio.BrokenResourceError, trio.ClosedResourceError: as a stream does.
        """
        return 0


class SocketPipe(Pipe):
    """A plain socket, whose system calls are made here."""

    writes_at_once = True

    def __init__(self, stream: trio.SocketStream) -> None:
        self._fileno = stream.socket.fileno
        self.receive = self._receive
        self.send_all = self._send_all

    async def _receive(self, max_bytes: int | None = None) -> bytes:
        assert max_bytes is not None
        number = self._fileno()
        if number < 0:
            raise _closed()
        while True:
            await trio.lowlevel.wait_readable(number)
            if self._fileno() != number:
                raise _closed()
            try:
                return os.read(number, max_bytes)
            except BlockingIOError:
                pass
            except OSError as error:
                raise trio.BrokenResourceError(str(error)) from error

    async def _send_all(self, data: bytes | bytearray | memoryview) -> None:
        sent = self.write_now(data)
        if sent == len(data):
            return
        with memoryview(data) as view:
            while sent < len(view):
                await trio.lowlevel.wait_writable(self._fileno())
                with view[sent:] as rest:
                    sent += self.write_now(rest)

    def write_now(self, data: bytes | bytearray | memoryview) -> int:
        # Asked each time: the number of a closed socket may be another's by now.
        number = self._fileno()
        if number < 0:
            raise _closed()
        try:
            return os.write(number, data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error


def _closed() -> trio.ClosedResourceError:
    return trio.ClosedResourceError("the socket was closed")


def pipe_of(stream: trio.abc.Stream) -> Pipe:
    """The quickest way to read and write this stream."""
    if isinstance(stream, trio.SocketStream) and sys.platform != "win32":
        # Sockets may be made up, by trio.socket.set_custom_socket_factory.
        number = stream.socket.fileno()
        if number >= 0 and stat.S_ISSOCK(os.fstat(number).st_mode):
            return SocketPipe(stream)
    return Pipe(stream)
