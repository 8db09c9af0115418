"""Unmodified generated stubs on the channel."""

from __future__ import annotations

import pytest
import trio
from grpclib.const import Cardinality, Status
from grpclib.metadata import Deadline

from sepp_trio.transport import CallError, open_channel
from sepp_trio.wire.generated.sepp.v1 import (
    AckRequest,
    GetServerInfoRequest,
    GetServerInfoResponse,
    QueueServiceStub,
)

from .peer import Network


async def test_a_generated_stub_runs_unmodified(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    network = Network()

    async def serve() -> None:
        peer = await network.peer(0)
        request = await peer.request()
        assert request.headers[":path"] == "/sepp.v1.QueueService/GetServerInfo"
        assert request.headers["grpc-timeout"] == "3000m"
        assert request.headers["x-trace"] == "7"
        await peer.answer(request.stream, bytes(GetServerInfoResponse(server_version="1.2")))
        request = await peer.request()
        await peer.refuse(request.stream, 3, "no job")

    nursery.start_soon(serve)
    async with open_channel(network.connect, authority="peer") as channel:
        stub = QueueServiceStub(channel, timeout=3, metadata={"x-trace": "7"})
        assert (await stub.get_server_info(GetServerInfoRequest())).server_version == "1.2"
        with pytest.raises(CallError, match="no job") as caught:
            await stub.ack(AckRequest())
        assert caught.value.status is Status.INVALID_ARGUMENT


async def test_the_channels_codec_is_used(nursery: trio.Nursery) -> None:
    class Codec:
        def encode(self, message: object, message_type: object) -> bytes:
            return repr((message, message_type)).encode()

        def decode(self, data: bytes, message_type: object) -> object:
            return (data, message_type)

    network = Network()
    nursery.start_soon(network.serve)
    async with open_channel(network.connect, authority="peer", codec=Codec()) as channel:
        for _ in range(2):
            async with channel.request("/a/b", Cardinality.UNARY_UNARY, 1, 2) as call:
                await call.send_message("m", end=True)
                assert await call.recv_message() == (b"('m', 1)", 2)


async def test_a_grpclib_deadline_is_taken_over(nursery: trio.Nursery) -> None:
    network = Network()
    nursery.start_soon(network.serve)
    unary = Cardinality.UNARY_UNARY
    deadline = Deadline.from_timeout(5)
    async with open_channel(network.connect, authority="peer") as channel:
        for timeout, most in ((None, 5000), (9.0, 5000), (2.0, 2000)):
            call = channel.request(
                "/a/b",
                unary,
                GetServerInfoRequest,
                GetServerInfoRequest,
                timeout=timeout,
                deadline=deadline,
            )
            async with call:
                await call.send_message(GetServerInfoRequest())
                await call.recv_message()
            request = list(network.peers[0].requests.values())[-1]
            assert most - 1000 < int(request.headers["grpc-timeout"][:-1]) <= most


async def test_streaming_and_misuse_are_refused(nursery: trio.Nursery) -> None:
    network = Network()
    async with open_channel(network.connect, authority="peer") as channel:
        for cardinality in Cardinality:
            if cardinality is not Cardinality.UNARY_UNARY:
                with pytest.raises(NotImplementedError, match="/a/b: only unary"):
                    channel.request("/a/b", cardinality, bytes, bytes)
        call = channel.request("/a/b", Cardinality.UNARY_UNARY, bytes, bytes)
        with pytest.raises(RuntimeError, match="before send_message"):
            await call.recv_message()
        with pytest.raises(ValueError, match="metadata"):
            channel.request(
                "/a/b", Cardinality.UNARY_UNARY, bytes, bytes, metadata=[("grpc-x", "y")]
            )
