"""Our client against grpcio's server, over a socket."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent import futures

import grpc
import pytest
import trio
from grpclib.const import Status

from sepp_trio.transport import CallError, Channel, Method, open_channel, tcp_connector

from .peer import ECHO


def method(name: str) -> Method[bytes, bytes]:
    return Method(f"/test.Service/{name}", lambda b: b, lambda b: b)


class Handler(grpc.GenericRpcHandler):
    """Echo, and what can go wrong."""

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        function = getattr(self, details.method.rpartition("/")[2].lower(), None)
        return function and grpc.unary_unary_rpc_method_handler(function)

    def echo(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        return request

    def fail(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, request.decode())

    def left(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        return repr(context.time_remaining()).encode()

    def metadata(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        return repr(sorted(tuple(pair) for pair in context.invocation_metadata())).encode()

    def sleep(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        time.sleep(float(request))
        return b"slept"


@contextlib.contextmanager
def grpcio_server(*options: tuple[str, int]) -> Iterator[int]:
    server = grpc.server(
        futures.ThreadPoolExecutor(4),
        handlers=[Handler()],
        options=[
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            *options,
        ],
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield port
    finally:
        server.stop(0).wait()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with grpcio_server() as port:
        yield port


def connected(port: int) -> contextlib.AbstractAsyncContextManager[Channel]:
    return open_channel(
        tcp_connector("127.0.0.1", port),
        authority=f"127.0.0.1:{port}",
        user_agent="sepp-trio-test",
        metadata={"x-text": "väl".encode().hex(), "x-bytes-bin": b"\0\xff"},
    )


async def test_many_calls_and_repeated_header_blocks(port: int) -> None:
    async with connected(port) as channel:
        async with trio.open_nursery() as callers:
            for number in range(200):
                callers.start_soon(_echoes, channel, b"%d" % number)
        for number in range(50):
            await _echoes(channel, b"x" * number)
        assert channel.statistics().connections == 1


async def _echoes(channel: Channel, payload: bytes) -> None:
    assert await channel.unary(ECHO, payload, timeout=20) == payload


@pytest.mark.parametrize("size", [0, 16383, 16384, 65535, 65536, 271_828, (4 << 20) - 1])
async def test_messages_of_all_sizes(size: int, port: int) -> None:
    """Trial 35."""
    async with connected(port) as channel:
        await _echoes(channel, bytes(range(256)) * (size // 256) + b"x" * (size % 256))


async def test_errors_with_their_texts(port: int) -> None:
    async with connected(port) as channel:
        for text in ("plain", "50 % of naïve €\n🦕", "x" * 3000):
            with pytest.raises(CallError) as caught:
                await channel.unary(method("Fail"), text.encode())
            assert caught.value.status is Status.FAILED_PRECONDITION
            assert caught.value.message == text
        with pytest.raises(CallError) as caught:
            await channel.unary(method("Nothing"), b"")
        assert caught.value.status is Status.UNIMPLEMENTED


async def test_deadlines_reach_the_server(port: int) -> None:
    async with connected(port) as channel:
        assert 60 < float(await channel.unary(method("Left"), b"", timeout=100)) <= 100.01
        with trio.fail_after(50):
            assert 10 < float(await channel.unary(method("Left"), b"", timeout=100)) <= 50.01
        with pytest.raises(CallError) as caught:
            await channel.unary(method("Sleep"), b"2", timeout=0.1)
        assert caught.value.status is Status.DEADLINE_EXCEEDED


async def test_metadata_reach_the_server(port: int) -> None:
    async with connected(port) as channel:
        seen = (await channel.unary(method("Metadata"), b"")).decode()
    assert "('x-bytes-bin', b'\\x00\\xff')" in seen
    assert f"('x-text', '{'väl'.encode().hex()}')" in seen
    assert "('user-agent', 'sepp-trio-test')" in seen


async def test_cancelled_calls_leave_the_connection_whole(port: int) -> None:
    async with connected(port) as channel:
        for _ in range(30):
            with trio.move_on_after(0.003):
                await channel.unary(method("Sleep"), b"0.01")
        await _echoes(channel, b"whole")
        assert channel.statistics().connections == 1


async def test_a_server_that_retires_connections_loses_no_call() -> None:
    """Trial 2 against grpcio's own two-step goodbye."""
    age = [("grpc.max_connection_age_ms", 300), ("grpc.max_connection_age_grace_ms", 10_000)]
    with grpcio_server(*age) as port:
        async with connected(port) as channel:
            with trio.fail_after(30):
                async with trio.open_nursery() as callers:
                    callers.start_soon(channel.unary, method("Sleep"), b"1")
                    while channel.statistics().connections < 4:
                        await _echoes(channel, b"x")
                        await trio.sleep(0.005)
