"""Our client under Trio, and our transport alone for what the client does not let through."""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING, Any

import trio
from grpclib.const import Cardinality
from grpclib.exceptions import GRPCError

import sepp_trio
from sepp_trio.transport import open_channel, tcp_connector
from tests.conformance.driver_common import (
    info_fields,
    instant_ms,
    payload_pair,
    rejection,
    trace_pair,
)
from tests.conformance.face import Ack, AtomicRefused, Dead, Delivery, Fail, Refused
from tests.conformance.wire import response_class, route

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

    from sepp_trio.transport import Channel
    from tests.conformance.face import Handled, Metadata, NewJob, Rejection


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    try:
        yield
    except sepp_trio.JobNotFoundError as error:
        raise Refused("NOT_FOUND", str(error)) from error
    except (sepp_trio.AttemptMismatchError, sepp_trio.UnknownQueuesError) as error:
        raise Refused("FAILED_PRECONDITION", str(error)) from error
    except sepp_trio.UnauthenticatedError as error:
        raise Refused("UNAUTHENTICATED", str(error)) from error
    except sepp_trio.InvalidRequestError as error:
        raise Refused("INVALID_ARGUMENT", str(error)) from error
    except sepp_trio.ServerInternalError as error:
        raise Refused("INTERNAL", str(error)) from error
    except sepp_trio.UnexpectedStatusError as error:
        raise Refused(error.code, str(error)) from error
    except (sepp_trio.TransportError, sepp_trio.ConnectError) as error:
        raise Refused("UNAVAILABLE", str(error)) from error


def _request(job: NewJob) -> sepp_trio.EnqueueRequest:
    return sepp_trio.EnqueueRequest(
        job.queue,
        job.job_type,
        None if job.payload is None else sepp_trio.Payload(*job.payload),
        idempotency_key=job.key,
        priority=job.priority,
        max_attempts=job.max_attempts,
        custom=job.custom,
        trace_context=None if job.trace is None else sepp_trio.TraceContext(*job.trace),
        scheduled_at=job.scheduled_at,
    )


def _delivery(job: sepp_trio.Job) -> Delivery:
    return Delivery(
        id=job.id,
        queue=job.queue,
        job_type=job.job_type,
        payload=payload_pair(job.payload),
        priority=int(job.priority),
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        custom=job.custom,
        trace=trace_pair(job.trace_context),
        enqueued_ms=instant_ms(job.enqueued_at),
        lease_expires_ms=instant_ms(job.lease_expires_at),
        scheduled_ms=None if job.scheduled_at is None else instant_ms(job.scheduled_at),
    )


def _dead(record: sepp_trio.DeadLetterRecord | sepp_trio.RawDeadLetter) -> Dead:
    assert isinstance(record, sepp_trio.DeadLetterRecord), record
    return Dead(
        id=record.job_id,
        queue=record.queue,
        job_type=record.job_type,
        payload=payload_pair(record.payload),
        priority=int(record.priority),
        max_attempts=record.max_attempts,
        custom=record.custom,
        trace=trace_pair(record.trace_context),
        enqueued_ms=instant_ms(record.enqueued_at),
        scheduled_ms=None if record.scheduled_at is None else instant_ms(record.scheduled_at),
        cause=record.cause.name.lower(),
        failed_ms=instant_ms(record.failed_at),
        final_attempt=record.final_attempt,
        last_reason=record.last_reason,
    )


class _BytesCodec:
    """Lets message bytes through as they are."""

    def encode(self, message: Any, message_type: Any) -> bytes:
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> bytes:
        return data


class SeppTrioFace:
    """One SeppClient and one plain channel to the same address."""

    def __init__(self, client: sepp_trio.SeppClient, channel: Channel) -> None:
        self._client = client
        self._channel = channel

    async def enqueue(self, job: NewJob) -> Ack | Rejection:
        try:
            with _plain_errors():
                ack = await self._client.enqueue(_request(job))
        except sepp_trio.JobRejectedError as error:
            return rejection(error.rejection)
        return Ack(ack.job_id, ack.deduplicated)

    async def enqueue_batch(self, jobs: Sequence[NewJob]) -> list[Ack | Rejection]:
        with _plain_errors():
            results = await self._client.enqueue_batch([_request(job) for job in jobs])
        return [
            Ack(r.job_id, r.deduplicated) if isinstance(r, sepp_trio.EnqueueAck) else rejection(r)
            for r in results
        ]

    async def enqueue_atomic(self, jobs: Sequence[NewJob]) -> list[Ack]:
        try:
            with _plain_errors():
                acks = await self._client.enqueue_atomic([_request(job) for job in jobs])
        except sepp_trio.BatchValidationError as error:
            raise AtomicRefused([(e.index, rejection(e.rejection)) for e in error.errors]) from None
        return [Ack(a.job_id, a.deduplicated) for a in acks]

    async def reserve(
        self,
        queues: Sequence[str],
        *,
        lease: float = 30.0,
        wait: float = 0.0,
        max_jobs: int | None = None,
        worker_id: str | None = None,
    ) -> list[Delivery]:
        options = sepp_trio.ReserveOptions(
            queues, lease, wait_timeout=wait, worker_id=worker_id, max_jobs=max_jobs
        )
        with _plain_errors():
            return [_delivery(job) for job in await self._client.reserve(options)]

    async def ack(self, job: Delivery) -> None:
        with _plain_errors():
            await self._client.ack(job)

    async def nack(self, job: Delivery, retry: str | float = "default", reason: str = "") -> bool:
        directive = {
            "default": sepp_trio.RetryDirective.DEFAULT,
            "dead_letter": sepp_trio.RetryDirective.DEAD_LETTER,
        }.get(str(retry)) or sepp_trio.RetryDirective.after(float(retry))
        with _plain_errors():
            return await self._client.nack(job, directive, reason)

    async def extend(self, job: Delivery, seconds: float) -> int:
        with _plain_errors():
            return instant_ms(await self._client.extend(job, seconds))

    async def drain(self, queue: str | None = None, max_records: int = 1) -> list[Dead]:
        with _plain_errors():
            return [_dead(r) for r in await self._client.drain_dead_letters(queue, max_records)]

    async def info(self) -> Mapping[str, object]:
        with _plain_errors():
            return info_fields(await self._client.get_server_info())

    async def call(
        self, rpc: str, request: Any, *, timeout: float = 20.0, metadata: Metadata = ()
    ) -> Any:
        body = await self.call_bytes(
            route(rpc), request.SerializeToString(), timeout=timeout, metadata=metadata
        )
        return response_class(rpc).FromString(body)

    async def call_bytes(
        self, route: str, body: bytes, *, timeout: float = 20.0, metadata: Metadata = ()
    ) -> bytes:
        try:
            async with self._channel.request(
                route,
                Cardinality.UNARY_UNARY,
                bytes,
                bytes,
                timeout=timeout,
                deadline=None,
                metadata=metadata,
            ) as stream:
                await stream.send_message(body, end=True)
                answer = await stream.recv_message()
        except GRPCError as error:
            raise Refused(error.status.name, error.message or "") from error
        assert answer is not None
        return bytes(answer)

    @contextlib.asynccontextmanager
    async def worker(
        self,
        queues: Sequence[str],
        handlers: Mapping[str, Callable[[Handled], Awaitable[None]]],
        *,
        lease: float = 10.0,
        catch_all: Callable[[Handled], Awaitable[None]] | None = None,
        max_in_flight: int = 16,
        auto_extend: bool = False,
        auto_extend_interval: float | None = None,
        wait: float = 0.5,
    ) -> AsyncIterator[_RunningWorker]:
        worker = sepp_trio.Worker(
            self._client,
            queues,
            lease,
            wait_timeout=wait,
            max_in_flight=max_in_flight,
            auto_extend=auto_extend or auto_extend_interval is not None,
            auto_extend_interval=auto_extend_interval,
        )
        for job_type, function in handlers.items():
            worker.handle(job_type, _adapted(function))
        if catch_all is not None:
            worker.catch_all(_adapted(catch_all))
        ended = trio.Event()

        async def run(task_status: trio.TaskStatus[None]) -> None:
            try:
                await worker.run(task_status=task_status)
            finally:
                ended.set()

        async with trio.open_nursery() as nursery:
            await nursery.start(run)
            yield _RunningWorker(worker, ended)
            worker.shutdown()

    def duplicate_handler_is_refused(self, queue: str) -> bool:
        worker = sepp_trio.Worker(self._client, [queue], 1.0)

        async def handler(payload: object, ctx: object) -> None: ...

        worker.handle("twice", handler)
        try:
            worker.handle("twice", handler)
        except sepp_trio.DuplicateHandlerError:
            return True
        return False


class _RunningWorker:
    def __init__(self, worker: sepp_trio.Worker, ended: trio.Event) -> None:
        self._worker = worker
        self._ended = ended

    def shutdown(self) -> None:
        self._worker.shutdown()

    async def finished(self) -> None:
        await self._ended.wait()


class _HandledJob:
    def __init__(self, payload: sepp_trio.Payload | None, ctx: sepp_trio.JobCtx) -> None:
        self._ctx = ctx
        self.id = ctx.id
        self.job_type = ctx.job_type
        self.attempt = ctx.attempt
        self.payload = payload_pair(payload)

    async def extend(self, seconds: float) -> int:
        return instant_ms(await self._ctx.extend(seconds))


def _adapted(
    function: Callable[[Handled], Awaitable[None]],
) -> Callable[[sepp_trio.Payload | None, sepp_trio.JobCtx], Awaitable[None]]:
    async def handler(payload: sepp_trio.Payload | None, ctx: sepp_trio.JobCtx) -> None:
        try:
            await function(_HandledJob(payload, ctx))
        except Fail as fail:
            if fail.kind == "retry_after":
                raise sepp_trio.HandlerError.retry_after(fail.reason, fail.seconds) from None
            make = getattr(sepp_trio.HandlerError, fail.kind)
            raise make(fail.reason) from None

    return handler


@contextlib.asynccontextmanager
async def connect(
    address: str, *, api_key: str | None = None, authority: bytes | None = None
) -> AsyncIterator[SeppTrioFace]:
    """A face on its own connections; `authority` is the CA of a TLS server."""
    host, _, port = address.rpartition(":")
    tls = None
    if authority is not None:
        tls = ssl.create_default_context(cadata=authority.decode())
        tls.set_alpn_protocols(["h2"])
    async with (
        _plain_client(address, api_key, authority) as client,
        open_channel(
            tcp_connector(host, int(port), tls=tls),
            authority=address,
            scheme="http" if tls is None else "https",
            codec=_BytesCodec(),
            max_receive_message_bytes=1 << 30,
        ) as channel,
    ):
        yield SeppTrioFace(client, channel)


@contextlib.asynccontextmanager
async def _plain_client(
    address: str, api_key: str | None, authority: bytes | None
) -> AsyncIterator[sepp_trio.SeppClient]:
    async with contextlib.AsyncExitStack() as stack:
        with _plain_errors():
            client = await stack.enter_async_context(
                sepp_trio.open_client(address, api_key=api_key, ca_certificate=authority)
            )
        yield client
