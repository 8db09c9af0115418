"""The eight calls of the queue service, from record to record: check, commit, answer."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import trio
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError

from sepp_trio._version import __version__
from sepp_trio.wire import decoder_of, encoder_of, records, rpcs

from . import validation
from ._answers import Peer
from ._clock import BrokerClock
from ._time import to_wire
from .committer import Committer
from .config import BrokerConfig
from .engine import CheckedJob, Engine
from .health import HealthCheckRequest, HealthCheckResponse

# The version that clients see: ours, marked as the embedded server's.
SERVER_VERSION = f"{__version__}+sepp-trio"


class ServerStream(Protocol):
    """A call as the transport hands it to a handler."""

    async def recv_message(self) -> Any: ...
    async def send_message(self, message: Any) -> None: ...
    def on_undelivered(self, callback: Callable[[], None]) -> None: ...
    async def wait_room(self) -> None: ...
    def hold(self, size: int) -> None: ...
    @property
    def peer(self) -> Peer: ...


_Call: TypeAlias = Callable[[ServerStream, Any], Awaitable[Any]]


class ServerCodec:
    """Reads and writes the messages of both services, by the classes that the handlers name."""

    def __init__(self) -> None:
        self._encoders: dict[type, Callable[[Any], bytes]] = {
            HealthCheckResponse: HealthCheckResponse.encode
        }
        self._decoders: dict[type, Callable[[bytes], Any]] = {
            HealthCheckRequest: HealthCheckRequest.decode
        }
        for rpc in rpcs().values():
            self._encoders[rpc.response] = encoder_of(rpc.response)
            self._decoders[rpc.request] = decoder_of(rpc.request)

    def encode(self, message: Any, message_type: type) -> bytes:
        """The bytes of a response."""
        return self._encoders[message_type](message)

    def decode(self, data: bytes, message_type: type) -> Any:
        """The request.

        :raises ValueError: it is none.
        """
        return self._decoders[message_type](data)


class QueueService:
    """The calls over one engine and its committer."""

    def __init__(
        self, config: BrokerConfig, engine: Engine, committer: Committer, clock: BrokerClock
    ) -> None:
        self._config = config
        self._engine = engine
        self._committer = committer
        self._clock = clock
        self._info = _server_info(config)
        self.name = next(iter(rpcs().values())).route.split("/")[1]

    def handlers(self) -> Mapping[str, Handler]:
        """The calls by route."""
        calls: dict[str, _Call] = {
            "EnqueueBatch": self._enqueue_batch,
            "EnqueueAtomic": self._enqueue_atomic,
            "Reserve": self._reserve,
            "Ack": self._ack,
            "Nack": self._nack,
            "Extend": self._extend,
            "DrainDeadLetters": self._drain_dead_letters,
            "GetServerInfo": self._get_server_info,
        }
        return {
            rpc.route: Handler(
                _handler(calls[name]), Cardinality.UNARY_UNARY, rpc.request, rpc.response
            )
            for name, rpc in rpcs().items()
        }

    async def _enqueue_batch(
        self, _: ServerStream, request: records.EnqueueBatchRequest
    ) -> records.EnqueueBatchResponse:
        jobs = self._checked(request)
        return await self._committer.submit(lambda now: self._engine.enqueue_batch(jobs, now))

    async def _enqueue_atomic(
        self, _: ServerStream, request: records.EnqueueBatchRequest
    ) -> records.EnqueueAtomicResponse:
        jobs = self._checked(request)
        return await self._committer.submit(lambda now: self._engine.enqueue_atomic(jobs, now))

    def _checked(self, request: records.EnqueueBatchRequest) -> Sequence[CheckedJob]:
        validation.check_batch(self._config, request.jobs)
        now = self._clock.now_ms()
        return [validation.job_rejection(self._config, job, now) or job for job in request.jobs]

    async def _reserve(
        self, stream: ServerStream, request: records.ReserveRequest
    ) -> records.ReserveResponse:
        plan = validation.reserve_plan(self._config, request)
        deadline = trio.current_time() + plan.wait_ms / 1000
        while (leases := await self._committer.reserve(plan, stream, deadline)) is None:
            await stream.wait_room()
        # No checkpoint until this is said: who leaves from here on never gets the jobs.
        claims = [lease._replace(message=b"") for lease in leases]
        stream.on_undelivered(lambda: self._committer.give_back(claims))
        return records.ReserveResponse([lease.message for lease in leases])

    async def _ack(self, _: ServerStream, request: records.AckRequest) -> records.AckResponse:
        validation.check_ack(request)
        return await self._committer.submit(lambda now: self._engine.ack(request, now))

    async def _nack(self, _: ServerStream, request: records.NackRequest) -> records.NackResponse:
        validation.check_nack(request)
        return await self._committer.submit(lambda now: self._engine.nack(request, now))

    async def _extend(
        self, _: ServerStream, request: records.ExtendRequest
    ) -> records.ExtendResponse:
        lease_ms = validation.extension_ms(request)
        return await self._committer.submit(lambda now: self._engine.extend(request, lease_ms, now))

    async def _drain_dead_letters(
        self, stream: ServerStream, request: records.DrainDeadLettersRequest
    ) -> records.DrainDeadLettersResponse:
        limit = validation.drain_limit(self._config, request)

        def drain(size: int) -> tuple[records.DrainDeadLettersResponse, int]:
            response = self._engine.drain_dead_letters(request.queue, limit, size)
            return response, sum(map(len, response.records))

        while (response := await self._committer.take(drain, stream)) is None:
            await stream.wait_room()
        return response

    async def _get_server_info(
        self, _: ServerStream, request: records.GetServerInfoRequest
    ) -> records.GetServerInfoResponse:
        self._info.server_time = to_wire(self._clock.now_ms())
        return self._info


def _handler(call: _Call) -> Callable[[ServerStream], Awaitable[None]]:
    async def handle(stream: ServerStream) -> None:
        await stream.send_message(await call(stream, await stream.recv_message()))

    return handle


def _server_info(config: BrokerConfig) -> records.GetServerInfoResponse:
    limits = config.limits
    return records.GetServerInfoResponse(
        server_version=SERVER_VERSION,
        supported_protocol_versions=["v1"],
        restricts_encodings=limits.allowed_encodings is not None,
        allowed_encodings=list(limits.allowed_encodings or ()),
        max_payload_bytes=limits.max_payload_bytes,
        max_custom_entries=limits.max_custom_entries,
        max_custom_total_bytes=limits.max_custom_total_bytes,
        max_custom_key_bytes=limits.max_custom_key_bytes,
        max_queue_name_bytes=limits.max_queue_name_bytes,
        max_job_type_bytes=limits.max_job_type_bytes,
        max_idempotency_key_bytes=limits.max_idempotency_key_bytes,
        max_schedule_horizon=to_wire(limits.max_schedule_horizon_ms),
        max_enqueue_batch=limits.max_enqueue_batch,
        max_reserve_batch=limits.max_reserve_batch,
        max_reserve_queues=limits.max_reserve_queues,
        max_wait_timeout=to_wire(limits.max_wait_timeout_ms),
        max_lease_duration=to_wire(limits.max_lease_duration_ms),
        strict_queues=config.strict_queues,
        dead_letter_retention_enabled=config.storage.dead_letter_retention_ms > 0,
    )


class ApiKeyCheck:
    """Lets calls of the queue service in by their ``authorization`` header."""

    def __init__(self, config: BrokerConfig, service: str) -> None:
        keys = config.api_keys
        self._keys = None if keys is None else [entry.key.encode() for entry in keys]
        self._service = f"/{service}/"

    def __call__(self, route: str, headers: Sequence[tuple[str, str]]) -> None:
        """Judge a call by its route and headers.

        :raises GRPCError: UNAUTHENTICATED.
        """
        if self._keys is None or not route.startswith(self._service):
            return
        given = next((value for name, value in headers if name == "authorization"), "")
        scheme, key = given[:7], given[7:].encode(errors="replace")
        if scheme != "Bearer ":
            raise GRPCError(
                Status.UNAUTHENTICATED, "missing API key: expected 'authorization: Bearer <key>'"
            )
        # Each is compared, at a speed that tells nothing about it.
        if not sum(hmac.compare_digest(key, known) for known in self._keys):
            raise GRPCError(Status.UNAUTHENTICATED, "invalid API key")
