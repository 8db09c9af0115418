"""Ways to connect: TCP with or without TLS, Unix sockets."""

from __future__ import annotations

import os
import socket
import ssl
from typing import TYPE_CHECKING

import trio

from ._errors import DialError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Connector = Callable[[], Awaitable[trio.abc.Stream]]


def tcp_connector(
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    server_hostname: str | None = None,
) -> Connector:
    """Connect over TCP; with ``tls``, over TLS and nothing else.

    The context is told to offer HTTP/2 by ALPN.  ``server_hostname`` is the
    name that the certificate must have, ``host`` by default.

    What it returns is for ``open_channel``.  It raises DialError, is a
    checkpoint, and leaves nothing open if cancelled.
    """
    if tls is not None:
        tls.set_alpn_protocols(["h2"])

    async def connect() -> trio.abc.Stream:
        try:
            stream = await trio.open_tcp_stream(host, port)
        except socket.gaierror as error:
            raise DialError(f"{host}: {error.strerror}") from error
        except OSError as error:
            raise DialError(f"{host}:{port}: {_os_reason(error)}") from error
        if tls is None:
            return stream
        return await _start_tls(stream, tls, server_hostname or host)

    return connect


def unix_connector(
    path: str | os.PathLike[str],
    *,
    tls: ssl.SSLContext | None = None,
    server_hostname: str | None = None,
) -> Connector:
    """Connect to a Unix socket; see :func:`tcp_connector`."""
    if tls is not None:
        tls.set_alpn_protocols(["h2"])

    async def connect() -> trio.abc.Stream:
        try:
            stream = await trio.open_unix_socket(path)
        except OSError as error:
            raise DialError(f"{path}: {_os_reason(error)}") from error
        if tls is None:
            return stream
        return await _start_tls(stream, tls, server_hostname or "localhost")

    return connect


async def _start_tls(
    stream: trio.abc.Stream, context: ssl.SSLContext, hostname: str
) -> trio.abc.Stream:
    try:
        # https_compatible: HTTP/2 says when it is over, TLS need not say it again.
        secured = trio.SSLStream(stream, context, server_hostname=hostname, https_compatible=True)
        await secured.do_handshake()
        protocol = secured.selected_alpn_protocol()
        if protocol != "h2":
            raise DialError(f"the server does not offer HTTP/2 over TLS (ALPN: {protocol})")
    except trio.BrokenResourceError as error:
        await trio.aclose_forcefully(stream)
        raise DialError(_tls_reason(error.__cause__)) from error
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return secured


def _os_reason(error: OSError) -> str:
    """A short reason, also where several addresses were tried."""
    causes = [error]
    if isinstance(error.__cause__, BaseExceptionGroup):
        causes = [e for e in error.__cause__.exceptions if isinstance(e, OSError)] or causes
    elif isinstance(error.__cause__, OSError):
        causes = [error.__cause__]
    # Trio's texts repeat the address; the number knows better.
    texts = [os.strerror(cause.errno) if cause.errno else str(cause) for cause in causes]
    return ", ".join(dict.fromkeys(texts))


def _tls_reason(cause: BaseException | None) -> str:
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"the server's certificate is not accepted: {cause.verify_message}"
    if isinstance(cause, ssl.SSLEOFError) or not isinstance(cause, ssl.SSLError):
        return "the server closed the connection during the TLS handshake"
    if cause.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return "the server does not speak TLS"
    return f"TLS handshake failed: {cause.reason or cause}"
