"""A generated service base and a generated stub, both unmodified, over the two roles."""

from __future__ import annotations

import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from trio.testing import MockClock

from sepp_trio.transport import CallError, open_channel
from sepp_trio.transport._stub import MessageCodec
from sepp_trio.transport.server import GrpcServer
from sepp_trio.wire.generated.sepp.v1 import (
    AckRequest,
    AckResponse,
    GetServerInfoRequest,
    GetServerInfoResponse,
    QueueServiceBase,
    QueueServiceStub,
    ReserveRequest,
    ReserveResponse,
)


class Queue(QueueServiceBase):
    """Some of the methods; the rest is as it was generated."""

    async def ack(self, message: AckRequest) -> AckResponse:
        if message.attempt != 1:
            raise GRPCError(Status.FAILED_PRECONDITION, "attempt mismatch")
        return AckResponse(job_id=message.job_id)

    async def reserve(self, message: ReserveRequest) -> ReserveResponse:
        await trio.sleep(20)
        return ReserveResponse()

    async def get_server_info(self, message: GetServerInfoRequest) -> GetServerInfoResponse:
        return GetServerInfoResponse(server_version="test")


async def test_a_generated_base_is_served_to_a_generated_stub(autojump_clock: MockClock) -> None:
    server = GrpcServer(Queue().__mapping__(), codec=MessageCodec())
    async with trio.open_nursery() as nursery:

        async def connect() -> trio.abc.Stream:
            ours, theirs = trio.testing.memory_stream_pair()
            nursery.start_soon(server.serve_stream, theirs)
            return ours

        async with open_channel(connect, authority="test", codec=MessageCodec()) as channel:
            stub = QueueServiceStub(channel)  # type: ignore[arg-type]
            assert (await stub.ack(AckRequest(job_id="j", attempt=1))).job_id == "j"
            assert (await stub.get_server_info(GetServerInfoRequest())).server_version == "test"
            with pytest.raises(CallError, match="attempt mismatch") as caught:
                await stub.ack(AckRequest(job_id="j", attempt=2))
            assert caught.value.status is Status.FAILED_PRECONDITION
            with pytest.raises(CallError) as caught:
                await stub.reserve(ReserveRequest(), timeout=5)
            assert caught.value.status is Status.DEADLINE_EXCEEDED
            assert await stub.reserve(ReserveRequest(), timeout=30) == ReserveResponse()
        await trio.testing.wait_all_tasks_blocked()
        assert not nursery.child_tasks


async def test_what_a_base_leaves_out_is_unimplemented(autojump_clock: MockClock) -> None:
    server = GrpcServer(QueueServiceBase().__mapping__(), codec=MessageCodec())
    async with trio.open_nursery() as nursery:

        async def connect() -> trio.abc.Stream:
            ours, theirs = trio.testing.memory_stream_pair()
            nursery.start_soon(server.serve_stream, theirs)
            return ours

        async with open_channel(connect, authority="test", codec=MessageCodec()) as channel:
            stub = QueueServiceStub(channel)  # type: ignore[arg-type]
            with pytest.raises(CallError) as caught:
                await stub.ack(AckRequest(job_id="j", attempt=1))
            assert caught.value.status is Status.UNIMPLEMENTED
            assert caught.value.origin == "server"
