"""``open_client``: from an address and options to a client that is connected and ready."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import trio
from tricycle import open_service_nursery

from .._version import __version__
from ..errors import ConnectError, InvalidApiKeyError
from ..lease import LeaseKeeper
from ..retry import RetryPolicy
from ..transport import DialError, open_channel, tcp_connector, unix_connector
from ..types import Duration
from ..types._checks import integer, seconds
from ..wire import SeppCodec
from ._address import UnixAddress, parse_address
from ._client import SeppClient
from ._methods import methods
from ._reason import clean_reason
from ._status import lease_error
from ._tls import PemSource, TlsOptions, tls_context

logger = logging.getLogger("sepp_trio")

Connect: TypeAlias = Callable[[], Awaitable[trio.abc.Stream]]
"""Makes one connection; called again whenever one is needed."""


@asynccontextmanager
async def open_client(
    address: str | Connect,
    *,
    api_key: str | None = None,
    tls: bool | ssl.SSLContext | None = None,
    ca_certificate: PemSource | None = None,
    client_certificate: tuple[PemSource, PemSource] | None = None,
    server_hostname: str | None = None,
    retry_policy: RetryPolicy | None = None,
    rpc_timeout: Duration = 30.0,
    connect_timeout: Duration = 5.0,
    max_receive_message_bytes: int = 64 * 2**20,
    keepalive_interval: Duration = 10.0,
    keepalive_timeout: Duration = 4.0,
) -> AsyncIterator[SeppClient]:
    """Connect to a sepp server; the client works until the block ends.

    The block is entered when the server has answered on the connection (a checkpoint; a
    cancel leaves nothing behind). A connection that is lost later is dialled anew while
    there is work for it. When the block ends the connection is closed at once, and calls
    that other tasks still have open fail with ``ClientClosedError``. An exception of the
    block comes out as it is, never in a group.

    Args:
        address: ``host:port`` or ``http://host:port`` for plain text, ``https://host:port``
            for TLS, ``unix:/path``; IPv6 in brackets. Or any ``async`` callable without
            arguments that gives a connected ``trio.abc.Stream``.
        api_key: Sent with every call, also in plain text: that is warned of once, unless
            the server is on this machine.
        tls: ``True``, or a context of your own (which then offers HTTP/2), for TLS without
            ``https://``. Each of the next three options turns it on as well.
        ca_certificate: Certificates to trust instead of the system's: PEM as ``bytes``, or a path.
        client_certificate: Certificate (with its chain) and unencrypted key, each likewise.
        server_hostname: The name that the server's certificate must have, if not the
            address's host.
        retry_policy: Repeats of failed calls; none unless given, apart from calls that the
            server is known not to have seen, which always are repeated.
        rpc_timeout: Seconds for each attempt of a call; a reserve has its own.
        connect_timeout: Seconds until a connection is usable: TCP, TLS, and the server's
            first word, for a server that shuts down takes connections and says nothing.
        max_receive_message_bytes: The largest answer; see ``reserve`` for one that is larger.
        keepalive_interval, keepalive_timeout: Seconds of silence before the server is
            asked for a sign of life, and seconds until the connection counts as lost then.

    Raises:
        ConnectError: no sepp server there: refused, silent, TLS failed, something else.
        InvalidApiKeyError: the key cannot be sent; whether the server takes it shows with
            the first call.
        TypeError, ValueError: an argument is wrong, or contradicts another.
    """
    place = None if callable(address) else parse_address(address)
    context = tls_context(
        place, TlsOptions(tls, ca_certificate, client_certificate, server_hostname)
    )
    metadata = {} if api_key is None else {"authorization": f"Bearer {_checked_key(api_key)}"}
    if retry_policy is None:
        retry_policy = RetryPolicy()
    elif not isinstance(retry_policy, RetryPolicy):
        raise TypeError(f"retry_policy must be a RetryPolicy, not {type(retry_policy).__name__}")
    connect: Connect
    if callable(address):
        connect, authority, name = address, "localhost", "the given stream"
    elif isinstance(place, UnixAddress):
        connect, authority, name = unix_connector(place.path), place.authority, address
    else:
        assert place is not None
        connect = tcp_connector(
            place.host, place.port, tls=context, server_hostname=server_hostname
        )
        authority, name = place.authority, address
    options = {
        "connect_timeout": seconds(connect_timeout, "connect_timeout"),
        "keepalive_interval": seconds(keepalive_interval, "keepalive_interval"),
        "keepalive_timeout": seconds(keepalive_timeout, "keepalive_timeout"),
    }
    attempt_timeout = seconds(rpc_timeout, "rpc_timeout")
    integer(max_receive_message_bytes, "max_receive_message_bytes", 1)
    if api_key is not None and context is None and place is not None and not place.is_loopback:
        logger.warning("the API key goes to %s in plain text: use https://", name)
    try:
        async with open_channel(
            connect,
            authority=authority,
            scheme="http" if context is None else "https",
            metadata=metadata,
            user_agent=f"sepp-trio/{__version__}",
            codec=SeppCodec(),
            max_receive_message_bytes=max_receive_message_bytes,
            **options,
        ) as channel:
            keeper = LeaseKeeper(
                channel, methods(), to_error=lease_error, clean_reason=clean_reason
            )
            client = SeppClient(
                channel,
                keeper,
                address=name,
                retry_policy=retry_policy,
                rpc_timeout=attempt_timeout,
            )
            async with _beating(keeper):
                try:
                    yield client
                finally:
                    client._closed = True
    except DialError as error:
        raise ConnectError(name, error.reason) from error


@asynccontextmanager
async def _beating(keeper: LeaseKeeper) -> AsyncIterator[None]:
    """Run the keeper of leases until the block has ended: a block that is cancelled still
    may hold leases while it cleans up."""
    failure: BaseException | None = None
    async with open_service_nursery() as nursery:
        nursery.start_soon(keeper.run)
        try:
            yield
        except BaseException as error:
            failure = error  # raised below, outside the nursery: that would make a group of it
        nursery.cancel_scope.cancel(reason="the client's block has ended")
    try:
        if failure is not None:
            raise failure
    finally:
        del failure  # it refers to this frame, which refers to it


def _checked_key(key: str) -> str:
    """The key, if a header can carry it. It is in no message: it is a secret."""
    if not isinstance(key, str):
        raise TypeError(f"api_key must be a string, not {type(key).__name__}")
    if not key:
        raise InvalidApiKeyError("api_key must not be empty")
    for index, character in enumerate(key):
        if not "!" <= character <= "~":
            raise InvalidApiKeyError(
                "api_key must be printable ASCII without spaces:"
                f" the character at index {index} is not"
            )
    return key
