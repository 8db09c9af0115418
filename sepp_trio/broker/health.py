"""The standard health service, ``grpc.health.v1``: who asks is told that we serve.

Its two messages are so small that their few bytes are read and written here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError

_SERVING: Final = 1


@dataclass(frozen=True, slots=True)
class HealthCheckRequest:
    """Field 1 is the name of the service asked about; empty is the server as a whole."""

    service: str

    @classmethod
    def decode(cls, data: bytes) -> HealthCheckRequest:
        """Read the message.

        :raises ValueError: it is none.
        """
        service = ""
        position = 0
        while position < len(data):
            # All other fields are skipped; those of a group (3, 4) are no longer in use.
            tag, position = _varint(data, position)
            match tag & 7:
                case 0:
                    _, position = _varint(data, position)
                    continue
                case 1:
                    size = 8
                case 5:
                    size = 4
                case 2:
                    size, position = _varint(data, position)
                case _:
                    raise ValueError("HealthCheckRequest has a field of an unknown kind")
            end = position + size
            if end > len(data):
                raise ValueError("HealthCheckRequest ends in the middle")
            if tag == 0x0A:
                service = data[position:end].decode()
            position = end
        return cls(service)


@dataclass(frozen=True, slots=True)
class HealthCheckResponse:
    """Field 1 is the status."""

    status: int

    def encode(self) -> bytes:
        """The message; the numbers of the statuses fit one byte."""
        return bytes((0x08, self.status))


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            raise ValueError("HealthCheckRequest ends in the middle")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise ValueError("HealthCheckRequest has a number that is too long")


class HealthService:
    """Check answers at once; Watch answers, and then waits for a change that never comes."""

    def __init__(self, service: str, until: Callable[[], Awaitable[None]]) -> None:
        """``service`` is the one that is served; a Watch ends when ``until`` returns."""
        self._known = ("", service)
        self._until = until

    def handlers(self) -> Mapping[str, Handler]:
        """The two calls by route."""
        return {
            f"/grpc.health.v1.Health/{name}": Handler(
                function, cardinality, HealthCheckRequest, HealthCheckResponse
            )
            for name, function, cardinality in (
                ("Check", self._check, Cardinality.UNARY_UNARY),
                ("Watch", self._watch, Cardinality.UNARY_STREAM),
            )
        }

    async def _check(self, stream: Any) -> None:
        self._judge(await stream.recv_message())
        await stream.send_message(HealthCheckResponse(_SERVING))

    async def _watch(self, stream: Any) -> None:
        self._judge(await stream.recv_message())
        await stream.send_message(HealthCheckResponse(_SERVING))
        await self._until()

    def _judge(self, request: HealthCheckRequest) -> None:
        if request.service not in self._known:
            raise GRPCError(Status.NOT_FOUND, f"unknown service {request.service!r}")
