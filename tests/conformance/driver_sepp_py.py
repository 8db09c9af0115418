"""The official asyncio client (sepp-py), and grpc.aio for what it does not let through."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import sepp
from sepp import errors

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

    from tests.conformance.face import Handled, Metadata, NewJob, Rejection

_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
]


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    try:
        yield
    except errors.JobNotFoundError as error:
        raise Refused("NOT_FOUND", str(error)) from error
    except (errors.AttemptMismatchError, errors.UnknownQueuesError) as error:
        raise Refused("FAILED_PRECONDITION", str(error)) from error
    except errors.UnauthenticatedError as error:
        raise Refused("UNAUTHENTICATED", str(error)) from error
    except errors.InvalidRequestError as error:
        raise Refused("INVALID_ARGUMENT", str(error)) from error
    except errors.ServerInternalError as error:
        raise Refused("INTERNAL", str(error)) from error
    except errors.UnexpectedStatusError as error:
        raise Refused(error.code.name, str(error)) from error
    except (errors.TransportError, errors.ConnectError) as error:
        raise Refused("UNAVAILABLE", str(error)) from error


def _request(job: NewJob) -> sepp.EnqueueRequest:
    return sepp.EnqueueRequest(
        job.queue,
        job.job_type,
        payload=None if job.payload is None else sepp.Payload(*job.payload),
        idempotency_key=job.key,
        priority=job.priority,
        max_attempts=job.max_attempts,
        custom=job.custom,
        trace_context=None if job.trace is None else sepp.TraceContext(*job.trace),
        scheduled_at=job.scheduled_at,
    )


def _delivery(job: sepp.Job) -> Delivery:
    ctx = job.ctx
    return Delivery(
        id=ctx.id,
        queue=ctx.queue,
        job_type=ctx.job_type,
        payload=payload_pair(job.payload),
        priority=int(ctx.priority),
        attempt=ctx.attempt,
        max_attempts=ctx.max_attempts,
        custom=ctx.custom,
        trace=trace_pair(ctx.trace_context),
        enqueued_ms=instant_ms(ctx.enqueued_at),
        lease_expires_ms=instant_ms(ctx.lease_expires_at),
        scheduled_ms=None if ctx.scheduled_at is None else instant_ms(ctx.scheduled_at),
    )


def _leased(job: Delivery) -> Any:
    # The client reads no more than these of a JobCtx.
    return SimpleNamespace(id=job.id, attempt=job.attempt, _lease=None)


class SeppPyFace:
    """One SeppClient and one plain channel to the same address."""

    def __init__(self, client: sepp.SeppClient, channel: grpc.aio.Channel) -> None:
        self._client = client
        self._channel = channel

    async def enqueue(self, job: NewJob) -> Ack | Rejection:
        try:
            with _plain_errors():
                ack = await self._client.enqueue(_request(job))
        except errors.JobRejectedError as error:
            return rejection(error.rejection)
        return Ack(ack.job_id, ack.deduplicated)

    async def enqueue_batch(self, jobs: Sequence[NewJob]) -> list[Ack | Rejection]:
        with _plain_errors():
            results = await self._client.enqueue_batch([_request(job) for job in jobs])
        return [
            Ack(r.job_id, r.deduplicated) if isinstance(r, sepp.EnqueueAck) else rejection(r)
            for r in results
        ]

    async def enqueue_atomic(self, jobs: Sequence[NewJob]) -> list[Ack]:
        try:
            with _plain_errors():
                acks = await self._client.enqueue_atomic([_request(job) for job in jobs])
        except errors.BatchValidationError as error:
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
        options = sepp.ReserveOptions(
            queues,
            timedelta(seconds=lease),
            wait_timeout=timedelta(seconds=wait),
            worker_id=worker_id,
            max_jobs=max_jobs,
        )
        with _plain_errors():
            return [_delivery(job) for job in await self._client.reserve(options) or []]

    async def ack(self, job: Delivery) -> None:
        with _plain_errors():
            await self._client.ack(_leased(job))

    async def nack(self, job: Delivery, retry: str | float = "default", reason: str = "") -> bool:
        directive = {
            "default": sepp.RetryDirective.DEFAULT,
            "dead_letter": sepp.RetryDirective.DEAD_LETTER,
        }.get(str(retry)) or sepp.RetryDirective.after(timedelta(seconds=float(retry)))
        with _plain_errors():
            return await self._client.nack(_leased(job), directive, reason)

    async def extend(self, job: Delivery, seconds: float) -> int:
        with _plain_errors():
            return instant_ms(await self._client.extend(_leased(job), timedelta(seconds=seconds)))

    async def drain(self, queue: str | None = None, max_records: int = 1) -> list[Dead]:
        with _plain_errors():
            records = await self._client.drain_dead_letters(queue, max_records)
        return [
            Dead(
                id=r.job_id,
                queue=r.queue,
                job_type=r.job_type,
                payload=payload_pair(r.payload),
                priority=int(r.priority),
                max_attempts=r.max_attempts,
                custom=r.custom,
                trace=trace_pair(r.trace_context),
                enqueued_ms=instant_ms(r.enqueued_at),
                scheduled_ms=None if r.scheduled_at is None else instant_ms(r.scheduled_at),
                cause=r.cause.value,
                failed_ms=instant_ms(r.failed_at),
                final_attempt=r.final_attempt,
                last_reason=r.last_reason,
            )
            for r in records
        ]

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
        method = self._channel.unary_unary(route)
        try:
            return bytes(await method(body, timeout=timeout, metadata=metadata))
        except grpc.aio.AioRpcError as error:
            raise Refused(error.code().name, error.details() or "") from error

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
        worker = sepp.Worker(
            self._client,
            queues,
            timedelta(seconds=lease),
            wait_timeout=timedelta(seconds=wait),
            max_in_flight=max_in_flight,
            auto_extend=auto_extend,
            auto_extend_interval=(
                None if auto_extend_interval is None else timedelta(seconds=auto_extend_interval)
            ),
        )
        for job_type, function in handlers.items():
            worker.handle(job_type, _adapted(function))
        if catch_all is not None:
            worker.catch_all(_adapted(catch_all))
        task = asyncio.create_task(worker.run())
        try:
            yield _RunningWorker(worker, task)
            worker.shutdown_handle().shutdown()
            await task
        finally:
            task.cancel()
            await asyncio.wait([task])

    def duplicate_handler_is_refused(self, queue: str) -> bool:
        worker = sepp.Worker(self._client, [queue], timedelta(seconds=1))

        async def handler(payload: sepp.Payload | None, ctx: sepp.JobCtx) -> None: ...

        worker.handle("twice", handler)
        try:
            worker.handle("twice", handler)
        except sepp.DuplicateHandlerError:
            return True
        return False


class _RunningWorker:
    def __init__(self, worker: sepp.Worker, task: asyncio.Task[None]) -> None:
        self._worker = worker
        self._task = task

    def shutdown(self) -> None:
        self._worker.shutdown_handle().shutdown()

    async def finished(self) -> None:
        await asyncio.shield(self._task)


class _HandledJob:
    def __init__(self, payload: sepp.Payload | None, ctx: sepp.JobCtx) -> None:
        self._ctx = ctx
        self.id = ctx.id
        self.job_type = ctx.job_type
        self.attempt = ctx.attempt
        self.payload = payload_pair(payload)

    async def extend(self, seconds: float) -> int:
        return instant_ms(await self._ctx.extend(timedelta(seconds=seconds)))


def _adapted(
    function: Callable[[Handled], Awaitable[None]],
) -> Callable[[sepp.Payload | None, sepp.JobCtx], Awaitable[None]]:
    async def handler(payload: sepp.Payload | None, ctx: sepp.JobCtx) -> None:
        try:
            await function(_HandledJob(payload, ctx))
        except Fail as fail:
            if fail.kind == "retry_after":
                delay = timedelta(seconds=fail.seconds)
                raise sepp.HandlerError.retry_after(fail.reason, delay) from None
            make = getattr(sepp.HandlerError, fail.kind)
            raise make(fail.reason) from None

    return handler


@contextlib.asynccontextmanager
async def connect(
    address: str, *, api_key: str | None = None, authority: bytes | None = None
) -> AsyncIterator[SeppPyFace]:
    """A face on its own connections; `authority` is the CA of a TLS server."""
    with _plain_errors():
        client = await sepp.SeppClient.connect(
            address, api_key=api_key, tls_ca_cert=authority, max_receive_message_bytes=-1
        )
    if authority is None:
        channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
    else:
        credentials = grpc.ssl_channel_credentials(authority)
        channel = grpc.aio.secure_channel(address, credentials, options=_OPTIONS)
    async with client, channel:
        yield SeppPyFace(client, channel)
