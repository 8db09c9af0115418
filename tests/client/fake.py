"""A server with scripted answers, our own GrpcServer over streams in memory."""

from __future__ import annotations

import functools
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpclib.const
import trio
import trio.testing
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from sepp_trio import wire
from sepp_trio.client import SeppClient, open_client
from sepp_trio.transport.server import GrpcServer
from sepp_trio.wire import records
from sepp_trio.wire.generated.sepp.v1 import QueueServiceBase

JOB_ID = "11111111-2222-4333-8444-555555555555"

Answer = Any
"""A record, raw bytes, a Status or GRPCError to fail with, or an async function of the request."""


@dataclass
class Seen:
    """One call as it arrived."""

    rpc: str
    request: Any
    headers: dict[str, str]
    timeout: str | None
    at: float


class _Codec(wire.SeppCodec):
    """Lets bytes through: the answers that no record can stand for."""

    def encode(self, message: object, message_type: type) -> bytes:
        return message if isinstance(message, bytes) else super().encode(message, message_type)


class FakeServer:
    """Answers each call with the next of its scripted answers; the last one stays."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.calls: list[Seen] = []
        self.connections: list[trio.testing.MemorySendStream] = []
        self.open_calls = 0
        self.dials = 0
        self._answers: defaultdict[str, deque[Answer]] = defaultdict(deque)
        self._nursery = nursery
        handlers = {
            route: grpclib.const.Handler(
                functools.partial(self._handle, route.rpartition("/")[2]),
                handler.cardinality,
                handler.request_type,
                handler.reply_type,
            )
            for route, handler in QueueServiceBase().__mapping__().items()
        }
        self.grpc = GrpcServer(handlers, codec=_Codec())
        self.script("GetServerInfo", server_info())

    def script(self, rpc: str, *answers: Answer) -> None:
        """Answer the next calls of ``rpc`` so, and all later ones like the last."""
        self._answers[rpc] = deque(answers)

    def requests(self, rpc: str) -> list[Any]:
        """The requests of all calls of ``rpc`` so far."""
        return [seen.request for seen in self.calls if seen.rpc == rpc]

    async def connect(self) -> trio.abc.Stream:
        """Dial this server."""
        ours, theirs = trio.testing.memory_stream_pair()
        self.dials += 1
        self.connections.append(ours)
        self._nursery.start_soon(self.grpc.serve_stream, theirs)
        return ours

    @asynccontextmanager
    async def client(self, **options: Any) -> AsyncIterator[SeppClient]:
        """A client that is connected to this server."""
        async with open_client(self.connect, **options) as client:
            yield client

    async def _handle(self, rpc: str, stream: Any) -> None:
        request = await stream.recv_message()
        self.calls.append(
            Seen(
                rpc,
                request,
                dict(stream.headers),
                stream.stream.timeout,
                trio.current_time(),
            )
        )
        answers = self._answers[rpc]
        if not answers:
            raise GRPCError(Status.UNIMPLEMENTED, f"{rpc} is not scripted")
        answer = answers.popleft() if len(answers) > 1 else answers[0]
        self.open_calls += 1
        try:
            if callable(answer):
                answer = await answer(request)
        finally:
            self.open_calls -= 1
        if isinstance(answer, Status):
            raise GRPCError(answer, f"scripted {answer.name}")
        if isinstance(answer, GRPCError):
            raise answer
        await stream.send_message(answer)


async def never(_: Any) -> Any:
    """An answer that does not come."""
    await trio.sleep_forever()


def after(seconds: float, answer: Answer) -> Callable[[Any], Awaitable[Any]]:
    """An answer that takes its time."""

    async def late(_: Any) -> Any:
        await trio.sleep(seconds)
        return answer

    return late


# ---- records ----


def server_time(ahead: float = 0.0) -> records.Timestamp:
    """The server's clock: Trio's, from the epoch of 2026 on."""
    milliseconds = int((trio.current_time() + ahead) * 1000) + 1_767_225_600_000
    return milliseconds // 1000, milliseconds % 1000 * 1_000_000


def server_info() -> Callable[[Any], Awaitable[Any]]:
    """A live answer to GetServerInfo."""

    async def answer(_: Any) -> Any:
        return info_record()

    return answer


def info_record(**members: Any) -> records.GetServerInfoResponse:
    """What an unconfigured server says of itself."""
    values: dict[str, Any] = {
        "server_version": "0.1.1",
        "supported_protocol_versions": ["v1"],
        "server_time": server_time(),
        "max_payload_bytes": 2**20,
        "max_schedule_horizon": (2_592_000, 0),
        "max_enqueue_batch": 256,
        "max_reserve_batch": 256,
        "max_reserve_queues": 32,
        "max_wait_timeout": (300, 0),
        "max_lease_duration": (300, 0),
    }
    return records.GetServerInfoResponse(**{**values, **members})


def job_record(**members: Any) -> records.Job:
    """A good job, leased for 30 s from now."""
    values: dict[str, Any] = {
        "id": JOB_ID,
        "job_type": "welcome",
        "payload": records.Payload(b"{}", "json"),
        "priority": 5,
        "enqueued_at": server_time(),
        "attempt": 1,
        "max_attempts": 3,
        "lease_expires_at": server_time(30),
        "queue": "emails",
    }
    return records.Job(**{**values, **members})


def reserved(*jobs: records.Job | bytes) -> records.ReserveResponse:
    """An answer to Reserve."""
    return records.ReserveResponse(
        [job if isinstance(job, bytes) else wire.encode(job) for job in jobs]
    )


def stored(*job_ids: str) -> records.EnqueueBatchResponse:
    """An answer to EnqueueBatch: all stored."""
    return records.EnqueueBatchResponse(
        [records.JobResult(success=records.EnqueueResponse(job_id)) for job_id in job_ids]
    )
