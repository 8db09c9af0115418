"""Ports that hold no sepp server, on real sockets: a ConnectError, in time, that says why."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme

from sepp_trio import errors
from sepp_trio.client import open_client
from tests.client.fake import FakeServer

Serve = Callable[[trio.SocketStream], Awaitable[None]]


async def listen(nursery: trio.Nursery, serve: Serve, host: str = "127.0.0.1") -> str:
    """Serve each connection so, on a free port."""

    async def quietly(stream: trio.SocketStream) -> None:
        try:
            await serve(stream)
        except trio.BrokenResourceError:
            pass  # the client has left
        finally:
            await trio.aclose_forcefully(stream)

    start = partial(trio.serve_tcp, quietly, 0, host=host)
    [listener] = await nursery.start(start)
    port = listener.socket.getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def failure(address: str, **options: Any) -> errors.ConnectError:
    """The error of a client that gives up within its time."""
    options = {"connect_timeout": 0.5, **options}
    started = trio.current_time()
    with pytest.raises(errors.ConnectError) as caught:
        async with open_client(address, **options):
            pytest.fail("connected")
    assert trio.current_time() - started < 1.5
    assert caught.value.address == address
    assert caught.value.reason
    assert str(caught.value) == f"could not connect to {address}: {caught.value.reason}"
    return caught.value


async def silent(_: trio.SocketStream) -> None:
    await trio.sleep_forever()


async def hang_up(_: trio.SocketStream) -> None:
    pass


async def http1(stream: trio.SocketStream) -> None:
    await stream.receive_some()
    await stream.send_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    await stream.receive_some()


async def ssh(stream: trio.SocketStream) -> None:
    await stream.send_all(b"SSH-2.0-OpenSSH_9.6\r\n")
    await trio.sleep_forever()


async def echo(stream: trio.SocketStream) -> None:
    async for data in stream:
        await stream.send_all(data)


async def babble(stream: trio.SocketStream) -> None:
    while True:
        await stream.send_all(b"\xff" * 4096)


async def test_nobody_listens(nursery: trio.Nursery) -> None:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    await listeners[0].aclose()
    assert "refused" in (await failure(f"127.0.0.1:{port}")).reason


async def test_no_such_host() -> None:
    error = await failure("no-such-host.invalid:50051", connect_timeout=5)
    assert "no-such-host.invalid" in error.reason


async def test_no_such_socket(tmp_path: Path) -> None:
    error = await failure(f"unix:{tmp_path}/sepp.sock")
    assert "No such file" in error.reason


@pytest.mark.parametrize(
    ("serve", "words"),
    [
        (silent, "0.5"),
        (hang_up, "closed"),
        (http1, "HTTP/1"),
        (ssh, "HTTP/2"),
        (echo, ""),
        (babble, "HTTP/2"),
    ],
    ids=["silent", "hang_up", "http1", "ssh", "echo", "babble"],
)
async def test_a_server_of_another_kind(nursery: trio.Nursery, serve: Serve, words: str) -> None:
    address = await listen(nursery, serve)
    assert words in (await failure(address)).reason
    nursery.cancel_scope.cancel()


# ---- TLS ----


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def tls_server(server: FakeServer, context: ssl.SSLContext) -> Serve:
    async def serve(stream: trio.SocketStream) -> None:
        await server.grpc.serve_stream(trio.SSLStream(stream, context, server_side=True))

    return serve


def context_for(authority: trustme.CA, name: str, protocols: list[str]) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name).configure_cert(context)
    if protocols:
        context.set_alpn_protocols(protocols)
    return context


async def tls_address(
    server: FakeServer,
    nursery: trio.Nursery,
    authority: trustme.CA,
    name: str = "127.0.0.1",
    protocols: list[str] | None = None,
    *,
    wants_client_certificate: bool = False,
) -> str:
    context = context_for(authority, name, ["h2"] if protocols is None else protocols)
    if wants_client_certificate:
        context.verify_mode = ssl.CERT_REQUIRED
        authority.configure_trust(context)
    return f"https://{await listen(nursery, tls_server(server, context))}"


async def test_tls_with_an_authority_of_ones_own(
    server: FakeServer, nursery: trio.Nursery, authority: trustme.CA, tmp_path: Path
) -> None:
    address = await tls_address(server, nursery, authority)
    file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(file))
    for source in (authority.cert_pem.bytes(), file):
        async with open_client(address, ca_certificate=source, api_key="s3cret") as client:
            assert (await client.get_server_info()).server_version == "0.1.1"
    assert server.calls[-1].headers[":scheme"] == "https"
    own = ssl.create_default_context()
    authority.configure_trust(own)
    async with open_client(address, tls=own) as client:
        assert (await client.get_server_info()).server_version == "0.1.1"
    nursery.cancel_scope.cancel()


async def test_the_certificates_name_can_be_given(
    server: FakeServer, nursery: trio.Nursery, authority: trustme.CA
) -> None:
    address = await tls_address(server, nursery, authority, "queue.internal")
    ca = authority.cert_pem.bytes()
    async with open_client(address, ca_certificate=ca, server_hostname="queue.internal") as client:
        assert (await client.get_server_info()).server_version == "0.1.1"
    assert "certificate is not accepted" in (await failure(address, ca_certificate=ca)).reason
    nursery.cancel_scope.cancel()


async def test_a_client_certificate_is_shown(
    server: FakeServer, nursery: trio.Nursery, authority: trustme.CA
) -> None:
    address = await tls_address(server, nursery, authority, wants_client_certificate=True)
    ca = authority.cert_pem.bytes()
    issued = authority.issue_cert("worker")
    chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    async with open_client(
        address,
        ca_certificate=ca,
        client_certificate=(chain, issued.private_key_pem.bytes()),
    ) as client:
        assert (await client.get_server_info()).server_version == "0.1.1"
    await failure(address, ca_certificate=ca)
    nursery.cancel_scope.cancel()


async def test_an_authority_that_is_not_trusted(
    server: FakeServer, nursery: trio.Nursery, authority: trustme.CA
) -> None:
    address = await tls_address(server, nursery, authority)
    assert "certificate is not accepted" in (await failure(address)).reason
    other = trustme.CA().cert_pem.bytes()
    error = await failure(address, ca_certificate=other)
    assert "certificate is not accepted" in error.reason
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("protocols", [["http/1.1"], []])
async def test_tls_without_http2(
    server: FakeServer, nursery: trio.Nursery, authority: trustme.CA, protocols: list[str]
) -> None:
    address = await tls_address(server, nursery, authority, protocols=protocols)
    error = await failure(address, ca_certificate=authority.cert_pem.bytes())
    assert "does not offer HTTP/2" in error.reason
    nursery.cancel_scope.cancel()


async def test_tls_to_a_plain_server(server: FakeServer, nursery: trio.Nursery) -> None:
    address = await listen(nursery, server.grpc.serve_stream)
    assert "does not speak TLS" in (await failure(f"https://{address}")).reason
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("serve", [silent, hang_up, http1], ids=["silent", "hang_up", "http1"])
async def test_tls_to_a_server_of_another_kind(nursery: trio.Nursery, serve: Serve) -> None:
    address = await listen(nursery, serve)
    await failure(f"https://{address}")
    nursery.cancel_scope.cancel()


async def test_plain_text_to_a_tls_server(
    server: FakeServer, nursery: trio.Nursery, authority: trustme.CA
) -> None:
    address = await tls_address(server, nursery, authority)
    await failure(address.removeprefix("https://"))
    nursery.cancel_scope.cancel()


# ---- good servers on real sockets ----


async def test_tcp_and_unix_sockets(
    server: FakeServer, nursery: trio.Nursery, tmp_path: Path
) -> None:
    address = await listen(nursery, server.grpc.serve_stream)
    for form in (address, f"http://{address}", f"http://{address}/"):
        async with open_client(form, api_key="s3cret") as client:
            assert (await client.get_server_info()).server_version == "0.1.1"
    path = tmp_path / "sepp.sock"
    with trio.socket.socket(trio.socket.AF_UNIX) as sock:
        await sock.bind(str(path))
        sock.listen()
        nursery.start_soon(
            trio.serve_listeners, server.grpc.serve_stream, [trio.SocketListener(sock)]
        )
        async with open_client(f"unix:{path}") as client:
            assert (await client.get_server_info()).server_version == "0.1.1"
        nursery.cancel_scope.cancel()


async def test_ipv6(server: FakeServer, nursery: trio.Nursery) -> None:
    try:
        address = await listen(nursery, server.grpc.serve_stream, "::1")
    except OSError:
        pytest.skip("this machine has no IPv6")
    async with open_client(address) as client:
        assert (await client.get_server_info()).server_version == "0.1.1"
    assert server.calls[-1].headers[":authority"] == address
    nursery.cancel_scope.cancel()
