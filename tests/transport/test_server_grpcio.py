"""grpcio as the client, on a real socket."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import grpc
import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from sepp_trio.transport.server import GrpcServer
from tests.transport.server_tools import (
    ECHO,
    FAIL,
    PARK,
    WATCH,
    BytesCodec,
    Service,
    open_port,
)

OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


async def with_client(use: Callable[[grpc.Channel], Any], service: Service | None = None) -> Any:
    """What ``use`` makes, in a thread, of a channel to a server."""
    server = GrpcServer((service or Service()).handlers(), codec=BytesCodec())

    def thread(port: int) -> Any:
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
            return use(channel)

    async with open_port(server) as port:
        return await trio.to_thread.run_sync(thread, port)


async def test_calls_one_after_the_other_and_side_by_side() -> None:
    def use(channel: grpc.Channel) -> list[bytes]:
        echo = channel.unary_unary(ECHO)
        first = [echo(b"%d" % number) for number in range(20)]
        futures = [echo.future(b"%d" % number) for number in range(20, 200)]
        return first + [future.result(timeout=30) for future in futures]

    assert await with_client(use) == [b"%d" % number for number in range(200)]


@pytest.mark.parametrize("text", ["job not found", "naïve – 💥 100 % \"'`\n"])
async def test_an_error_has_its_code_and_text(text: str) -> None:
    service = Service()
    service.failure = GRPCError(Status.FAILED_PRECONDITION, text)

    def use(channel: grpc.Channel) -> tuple[Any, Any]:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(FAIL)(b"")
        return caught.value.code(), caught.value.details()

    assert await with_client(use, service) == (grpc.StatusCode.FAILED_PRECONDITION, text)


async def test_a_deadline_ends_the_call_on_both_sides() -> None:
    service = Service()

    def use(channel: grpc.Channel) -> Any:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(PARK)(b"me", timeout=2)
        channel.unary_unary(ECHO)(b"after")
        return caught.value.code()

    # CANCELLED if the server's own timer was the first, as with the real one.
    assert await with_client(use, service) in (
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
    )
    assert service.cancelled == [b"me"]


async def test_a_cancel_ends_the_handler() -> None:
    service = Service()
    over = threading.Event()

    async def watch_service() -> None:
        while not service.cancelled:  # noqa: ASYNC110 - the service knows no events
            await trio.sleep(0.001)
        over.set()

    def use(channel: grpc.Channel) -> bytes:
        future = channel.unary_unary(PARK).future(b"me")
        while not service.started:
            time.sleep(0.001)
        future.cancel()
        assert over.wait(20)
        result: bytes = channel.unary_unary(ECHO)(b"after")
        return result

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_service)
        assert await with_client(use, service) == b"after"
    assert service.undelivered == [b"me"]


@pytest.mark.parametrize("size", [16_384, 65_536, 271_828, 4 * 1024 * 1024 - 1])
async def test_large_messages_both_ways(size: int) -> None:
    message = bytes(range(256)) * (size // 256) + bytes(size % 256)

    def use(channel: grpc.Channel) -> list[bytes]:
        echo = channel.unary_unary(ECHO)
        futures = [echo.future(message) for _ in range(3)]
        return [future.result(timeout=40) for future in futures]

    assert await with_client(use) == [message] * 3


async def test_a_message_over_the_limit_is_out_of_range() -> None:
    def use(channel: grpc.Channel) -> Any:
        echo = channel.unary_unary(ECHO)
        assert len(echo(bytes(16 * 1024 * 1024))) == 16 * 1024 * 1024
        with pytest.raises(grpc.RpcError) as caught:
            echo(bytes(16 * 1024 * 1024 + 1))
        assert echo(b"after") == b"after"
        return caught.value.code()

    assert await with_client(use) == grpc.StatusCode.OUT_OF_RANGE


async def test_metadata_reaches_the_server() -> None:
    seen: list[dict[str, str]] = []
    service = Service()
    server = GrpcServer(
        service.handlers(),
        codec=BytesCodec(),
        authorize=lambda route, headers: seen.append(dict(headers)),
    )

    def thread(port: int) -> None:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            echo = channel.unary_unary(ECHO)
            for key in ("one", "two"):
                echo(b"", metadata=[("authorization", f"Bearer {key}"), ("x-bin", b"\0\xff")])

    async with open_port(server) as port:
        await trio.to_thread.run_sync(thread, port)
    assert [headers["authorization"] for headers in seen] == ["Bearer one", "Bearer two"]
    assert {headers["x-bin"] for headers in seen} == {"AP8"}


async def test_a_stream_of_answers() -> None:
    service = Service()

    def use(channel: grpc.Channel) -> list[bytes]:
        watch = channel.unary_stream(WATCH)(b"abc")
        got = [next(watch) for _ in range(3)]
        watch.cancel()
        trio.from_thread.run_sync(service.release.set)
        return got + list(channel.unary_stream(WATCH)(b"de"))

    assert await with_client(use, service) == [b"a", b"b", b"c", b"d", b"e"]


async def test_a_drain_lets_calls_end_and_the_client_go() -> None:
    service = Service()
    server = GrpcServer(service.handlers(), codec=BytesCodec())

    def thread(port: int) -> bytes:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            future = channel.unary_unary(PARK).future(b"me")
            while not service.started:
                time.sleep(0.001)
            trio.from_thread.run_sync(server.start_drain)
            trio.from_thread.run_sync(service.release.set)
            result: bytes = future.result(timeout=20)
            return result

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, listeners)
        port = listeners[0].socket.getsockname()[1]
        with trio.fail_after(20):
            assert await trio.to_thread.run_sync(thread, port) == b"me"
