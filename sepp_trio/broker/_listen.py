"""Listening sockets, and the address they got."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import stat
from collections.abc import Sequence

import trio

from sepp_trio.errors import BrokerError, ConfigError

from .config import ListenConfig

_BACKLOG = 512


def tls_context(config: ListenConfig) -> ssl.SSLContext | None:
    """The server's TLS, ``None`` if it has none. Blocks on the files.

    :raises ConfigError: the files cannot be read, or do not belong together.
    """
    if config.tls_cert_path is None or config.tls_key_path is None:
        return None
    for name in ("tls_cert_path", "tls_key_path"):
        path = getattr(config, name)
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise ConfigError(f"server.{name}", f"{path}: {error.strerror}") from error
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        # An empty password, so that OpenSSL does not ask for one on the terminal.
        context.load_cert_chain(config.tls_cert_path, config.tls_key_path, password="")
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            "server.tls_cert_path",
            f"not a PEM certificate with its key ({config.tls_cert_path}, {config.tls_key_path}): "
            f"{error}",
        ) from error
    return context


class Listening:
    """Open sockets for one address."""

    def __init__(self, listeners: Sequence[trio.SocketListener], address: str) -> None:
        self.listeners = listeners
        # As a client takes it; the port is the real one.
        self.address = address

    async def aclose(self) -> None:
        """Close the sockets; a Unix socket's file goes with them."""
        for listener in self.listeners:
            await trio.aclose_forcefully(listener)
        if self.address.startswith("unix:"):
            with contextlib.suppress(OSError):
                os.unlink(self.address.removeprefix("unix:"))


async def listen(address: str) -> Listening:
    """Open ``host:port`` (port 0: any free one; IPv6 in brackets) or ``unix:/path``.

    A Unix socket's file that nobody listens on is replaced. A checkpoint.

    :raises BrokerError: it cannot be opened; says why.
    :raises ValueError: it is no address.
    """
    if address.startswith("unix:"):
        return await _listen_unix(address, address.removeprefix("unix:"))
    host, port = _parse(address)
    try:
        listeners = await trio.open_tcp_listeners(port, host=host, backlog=_BACKLOG)
    except OSError as error:
        raise _failed(address, error) from error
    if port == 0:
        # Each has a port of its own; one address can be told.
        for further in listeners[1:]:
            await trio.aclose_forcefully(further)
        listeners = listeners[:1]
    bound = listeners[0].socket.getsockname()[1]
    return Listening(listeners, f"{f'[{host}]' if ':' in host else host}:{bound}")


def _parse(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not (colon and host and port.isascii() and port.isdigit() and int(port) <= 65_535):
        raise ValueError(f"address must be host:port or unix:/path, not {address!r}")
    return host, int(port)


async def _listen_unix(address: str, path: str) -> Listening:
    if not path:
        raise ValueError(f"address must be host:port or unix:/path, not {address!r}")
    try:
        await _remove_stale(address, path)
        sock = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            await sock.bind(path)
            sock.listen(_BACKLOG)
        except BaseException:
            sock.close()
            raise
    except OSError as error:
        raise _failed(address, error) from error
    return Listening([trio.SocketListener(sock)], address)


async def _remove_stale(address: str, path: str) -> None:
    """Remove the socket file of a server that has ended; leave everything else alone."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise BrokerError(f"cannot listen on {address}: the file exists and is no socket")
    try:
        stream = await trio.open_unix_socket(path)
    except ConnectionRefusedError:
        os.unlink(path)
        return
    await trio.aclose_forcefully(stream)
    raise BrokerError(f"cannot listen on {address}: another server listens there")


def _failed(address: str, error: OSError) -> BrokerError:
    # Trio wraps the errors of several addresses, and words some anew.
    cause = error
    while cause.errno is None and isinstance(cause.__cause__, OSError):
        cause = cause.__cause__
    if cause.errno == errno.EADDRINUSE:
        reason = "the port is in use"
    elif isinstance(cause, socket.gaierror):
        reason = f"the host is not known ({cause.strerror})"
    else:
        reason = cause.strerror or str(cause)
    return BrokerError(f"cannot listen on {address}: {reason}")
