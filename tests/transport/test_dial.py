"""Real sockets: TCP, TLS, Unix, and ports that speak something else."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trustme

from sepp_trio.transport import CallError, DialError, open_channel, tcp_connector, unix_connector

from .peer import ECHO, Peer


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def server_context(authority: trustme.CA, alpn: list[str], *names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*(names or ("localhost",))).configure_cert(context)
    if alpn:
        context.set_alpn_protocols(alpn)
    return context


def client_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@contextlib.asynccontextmanager
async def listening(
    handler: Callable[[trio.SocketStream], Awaitable[None]],
) -> AsyncIterator[int]:
    """A TCP port of localhost that this handler serves."""
    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, handler, [listener])
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def echo(stream: trio.abc.Stream) -> None:
    async with stream:
        peer = Peer(stream)
        with contextlib.suppress(trio.BrokenResourceError):
            await peer.greet()
            await peer.serve()


def over_tls(context: ssl.SSLContext) -> Callable[[trio.SocketStream], Awaitable[None]]:
    async def serve(stream: trio.SocketStream) -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            await echo(trio.SSLStream(stream, context, server_side=True, https_compatible=True))

    return serve


async def test_a_call_over_tcp() -> None:
    async with (
        listening(echo) as port,
        open_channel(tcp_connector("127.0.0.1", port), authority="localhost") as channel,
    ):
        assert await channel.unary(ECHO, b"x" * 100_000) == b"x" * 100_000


async def test_a_call_over_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    listener = trio.socket.socket(trio.socket.AF_UNIX)
    await listener.bind(str(path))
    listener.listen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, echo, [trio.SocketListener(listener)])
        async with open_channel(unix_connector(path), authority="localhost") as channel:
            assert await channel.unary(ECHO, b"x") == b"x"
        nursery.cancel_scope.cancel()
    with pytest.raises(DialError, match="nothing: No such file"):
        await unix_connector(tmp_path / "nothing")()


async def test_tls_over_a_unix_socket(tmp_path: Path, authority: trustme.CA) -> None:
    path = tmp_path / "socket"
    listener = trio.socket.socket(trio.socket.AF_UNIX)
    await listener.bind(str(path))
    listener.listen()
    connect = unix_connector(path, tls=client_context(authority))
    serve = over_tls(server_context(authority, ["h2"]))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, [trio.SocketListener(listener)])
        async with open_channel(connect, authority="localhost", scheme="https") as channel:
            assert await channel.unary(ECHO, b"x") == b"x"
        nursery.cancel_scope.cancel()


async def test_a_call_over_tls(authority: trustme.CA) -> None:
    connect_to = server_context(authority, ["http/1.1", "h2"])
    async with listening(over_tls(connect_to)) as port:
        connect = tcp_connector(
            "127.0.0.1", port, tls=client_context(authority), server_hostname="localhost"
        )
        async with open_channel(connect, authority="localhost", scheme="https") as channel:
            assert await channel.unary(ECHO, b"x" * 100_000) == b"x" * 100_000


@pytest.mark.parametrize("alpn", [[], ["http/1.1"]])
async def test_tls_without_http2_is_a_dial_error(alpn: list[str], authority: trustme.CA) -> None:
    async with listening(over_tls(server_context(authority, alpn))) as port:
        connect = tcp_connector("localhost", port, tls=client_context(authority))
        with pytest.raises(DialError, match="does not offer HTTP/2"):
            await connect()


async def test_a_wrong_certificate_is_a_dial_error(authority: trustme.CA) -> None:
    async with listening(over_tls(server_context(authority, ["h2"], "elsewhere.example"))) as port:
        connect = tcp_connector("localhost", port, tls=client_context(authority))
        with pytest.raises(DialError, match=r"certificate is not accepted: Hostname mismatch"):
            await connect()
        with pytest.raises(DialError, match="certificate is not accepted"):
            await tcp_connector("localhost", port, tls=ssl.create_default_context())()


async def test_tls_to_a_plain_port_is_a_dial_error(authority: trustme.CA) -> None:
    async def plain(stream: trio.SocketStream) -> None:
        async with stream:
            await Peer(stream).greet()
            await stream.receive_some()

    async with listening(plain) as port:
        connect = tcp_connector("localhost", port, tls=client_context(authority))
        with pytest.raises(DialError, match="does not speak TLS"):
            await connect()


async def test_tls_that_is_cut_off_is_a_dial_error(authority: trustme.CA) -> None:
    async def hang_up(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.aclose()

    async with listening(hang_up) as port:
        connect = tcp_connector("localhost", port, tls=client_context(authority))
        with pytest.raises(DialError, match="closed the connection during the TLS handshake"):
            await connect()


async def test_a_tls_refusal_is_a_dial_error(authority: trustme.CA) -> None:
    async def refuse(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(b"\x15\x03\x01\0\x02\x02\x46")

    async with listening(refuse) as port:
        connect = tcp_connector("localhost", port, tls=client_context(authority))
        with pytest.raises(DialError, match=r"TLS handshake failed: \w*PROTOCOL_VERSION"):
            await connect()


async def test_plain_http2_to_a_tls_port_is_a_dial_error(authority: trustme.CA) -> None:
    async with listening(over_tls(server_context(authority, ["h2"]))) as port:
        with pytest.raises(DialError, match="TLS"):
            async with open_channel(tcp_connector("localhost", port), authority="localhost"):
                raise AssertionError


async def test_an_http1_server_is_a_dial_error() -> None:
    async def http1(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

    async with listening(http1) as port:
        with pytest.raises(DialError, match="HTTP/1"):
            async with open_channel(tcp_connector("127.0.0.1", port), authority="localhost"):
                raise AssertionError


async def test_a_silent_port_is_a_dial_error() -> None:
    async def silent(_: trio.SocketStream) -> None:
        await trio.sleep_forever()

    async with listening(silent) as port:
        with pytest.raises(DialError, match=r"within 0\.1 s"):
            async with open_channel(
                tcp_connector("127.0.0.1", port), authority="localhost", connect_timeout=0.1
            ):
                raise AssertionError


async def test_a_cancelled_tls_handshake_closes_the_socket(authority: trustme.CA) -> None:
    hello, closed = trio.Event(), trio.Event()

    async def silent(stream: trio.SocketStream) -> None:
        async with stream:
            while await stream.receive_some():
                hello.set()
            closed.set()

    async with listening(silent) as port:
        connect = tcp_connector("localhost", port, tls=client_context(authority))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(connect)
            await hello.wait()
            nursery.cancel_scope.cancel()
        with trio.fail_after(5):
            await closed.wait()


async def test_nobody_listening_is_a_dial_error() -> None:
    with trio.socket.socket() as unused:
        await unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    for host in ("127.0.0.1", "localhost"):
        with pytest.raises(DialError, match=f"^{host}:{port}: Connection refused$"):
            await tcp_connector(host, port)()


async def test_an_unknown_host_is_a_dial_error() -> None:
    with pytest.raises(DialError, match=r"no-such-host.invalid: "):
        await tcp_connector("no-such-host.invalid", 1)()


async def test_an_error_of_the_callable_is_a_dial_error() -> None:
    async def broken() -> trio.abc.Stream:
        raise RuntimeError("out of order")

    with pytest.raises(DialError, match="RuntimeError: out of order"):
        async with open_channel(broken, authority="x"):
            raise AssertionError


@pytest.mark.parametrize(
    ("authority_name", "metadata"),
    [
        ("na\nme", []),
        ("näme", []),
        ("name", [("x", "a\r\nb")]),
        ("name", [("grpc-timeout", "1S")]),
        ("name", [("Upper", "x")]),
        ("name", [("x", "ü")]),
    ],
)
async def test_what_cannot_be_a_header_is_refused(
    authority_name: str, metadata: list[tuple[str, str]]
) -> None:
    async def never() -> trio.abc.Stream:
        raise AssertionError

    with pytest.raises(ValueError, match=r"header|metadata"):
        async with open_channel(never, authority=authority_name, metadata=metadata):
            raise AssertionError


async def test_a_reset_connection_is_named() -> None:
    accepted: list[trio.SocketStream] = []

    async def keep(stream: trio.SocketStream) -> None:
        accepted.append(stream)
        peer = Peer(stream)
        await peer.greet()
        await peer.request()
        stream.setsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        stream.socket.close()

    async with listening(keep) as port:
        connect = tcp_connector("127.0.0.1", port)
        async with open_channel(connect, authority="localhost") as channel:
            with pytest.raises(CallError, match="reset by peer"):
                await channel.unary(ECHO, b"")
