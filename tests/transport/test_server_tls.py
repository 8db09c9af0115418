"""TLS listeners: ALPN, client certificates, and peers that speak something else."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Awaitable, Callable

import pytest
import trio
import trustme

from sepp_trio.transport.server import GrpcServer, ServerConfig
from tests.transport.hostile import RawClient
from tests.transport.server_tools import ECHO, BytesCodec, Service, open_port


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def server_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    return context


def _client_context(authority: trustme.CA, *protocols: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context


async def _with_port(
    server_context: ssl.SSLContext,
    use: Callable[[int], Awaitable[None]],
    config: ServerConfig | None = None,
) -> None:
    server = GrpcServer(Service().handlers(), codec=BytesCodec(), config=config)
    async with open_port(server, server_context) as port:
        with trio.fail_after(10):
            await use(port)


async def _dial(port: int, context: ssl.SSLContext) -> trio.SSLStream[trio.SocketStream]:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    tls = trio.SSLStream(stream, context, server_hostname="localhost", https_compatible=True)
    await tls.do_handshake()
    return tls


@pytest.mark.parametrize(
    ("protocols", "chosen"), [(["h2"], "h2"), (["http/1.1", "h2"], "h2"), ([], None)]
)
async def test_clients_with_h2_or_without_alpn_are_served(
    authority: trustme.CA,
    server_context: ssl.SSLContext,
    protocols: list[str],
    chosen: str | None,
) -> None:
    async def use(port: int) -> None:
        stream = await _dial(port, _client_context(authority, *protocols))
        assert stream.selected_alpn_protocol() == chosen
        client = RawClient(stream)
        await client.start()
        message = b"x" * 300_000
        assert (await client.request(ECHO, message)).messages == [message]
        await stream.aclose()

    await _with_port(server_context, use)


async def test_a_client_with_only_http_1_1_is_turned_away(
    authority: trustme.CA, server_context: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="sepp_trio")

    async def use(port: int) -> None:
        stream = await _dial(port, _client_context(authority, "http/1.1"))
        client = RawClient(stream)
        await client.drained()
        assert client.settings == []
        await stream.aclose()

    await _with_port(server_context, use)
    assert "no h2" in caplog.text


async def test_plain_text_on_a_tls_port_is_closed_without_harm(
    authority: trustme.CA, server_context: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="sepp_trio")

    async def use(port: int) -> None:
        async with await trio.open_tcp_stream("127.0.0.1", port) as plain:
            client = RawClient(plain)
            await client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
            await client.drained()
            assert client.settings == []
        stream = await _dial(port, _client_context(authority, "h2"))
        client = RawClient(stream)
        await client.start()
        await stream.aclose()

    await _with_port(server_context, use)
    assert [record.levelno for record in caplog.records] == [logging.INFO]
    assert "no TLS" in caplog.text


async def test_a_tls_handshake_has_its_time(
    server_context: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="sepp_trio")

    async def use(port: int) -> None:
        async with await trio.open_tcp_stream("127.0.0.1", port) as silent:
            assert await silent.receive_some() == b""

    await _with_port(server_context, use, ServerConfig(handshake_timeout=0.05))
    assert "no TLS handshake in time" in caplog.text


async def test_client_certificates_are_the_context_s_matter(
    authority: trustme.CA, server_context: ssl.SSLContext
) -> None:
    server_context.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(server_context)

    async def use(port: int) -> None:
        context = _client_context(authority, "h2")
        stranger = RawClient(await _dial(port, context))
        # TLS 1.3: the server's refusal comes after the client's handshake.
        await stranger.drained()
        assert stranger.settings == []
        await trio.aclose_forcefully(stranger.stream)
        authority.issue_cert("worker@example.org").configure_cert(context)
        stream = await _dial(port, context)
        client = RawClient(stream)
        await client.start()
        assert (await client.request(ECHO, b"me")).messages == [b"me"]
        await stream.aclose()

    await _with_port(server_context, use)


async def test_a_drain_does_not_wait_for_handshakes(server_context: ssl.SSLContext) -> None:
    server = GrpcServer(Service().handlers(), codec=BytesCodec())
    async with open_port(server, server_context) as port:
        with trio.fail_after(5):
            async with await trio.open_tcp_stream("127.0.0.1", port) as silent:
                await trio.testing.wait_all_tasks_blocked(0.05)
                server.start_drain()
                assert await silent.receive_some() == b""
