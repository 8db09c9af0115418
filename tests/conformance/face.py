"""What a scenario sees: plain values and two protocols, the same for every driver.

A scenario is written once and runs under Trio with our client and under asyncio with sepp-py.
So nothing here belongs to an event loop or to a client library: jobs are small dataclasses,
instants are integer milliseconds since the epoch (the server's own unit), and every refusal of
a whole call is one exception, `Refused`, with the name of its gRPC status.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from datetime import datetime

Primitive = str | int | float | bool
Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to enqueue; what is None is not sent."""

    queue: str
    job_type: str = "task"
    payload: tuple[bytes, str] | None = None
    key: str | None = None
    priority: int | None = None
    max_attempts: int | None = None
    custom: Mapping[str, Primitive] = field(default_factory=dict)
    trace: tuple[str, str | None] | None = None
    scheduled_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Ack:
    """One job was taken."""

    job_id: str
    deduplicated: bool


@dataclass(frozen=True, slots=True)
class Rejection:
    """One job was refused; `reason` is the name of the oneof member.

    Durations among the fields are seconds, instants are milliseconds since the epoch.
    """

    reason: str
    fields: Mapping[str, object] = field(default_factory=dict)


class AtomicRefused(Exception):
    """EnqueueAtomic stored nothing; `errors` holds (index, rejection) in the server's order."""

    def __init__(self, errors: list[tuple[int, Rejection]]) -> None:
        super().__init__(errors)
        self.errors = errors


class Refused(Exception):
    """A whole call was refused: `status` is the name of the gRPC status."""

    def __init__(self, status: str, message: str = "") -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


@contextlib.contextmanager
def refused(*statuses: str, saying: str = "") -> Iterator[None]:
    """The call inside is refused with one of `statuses`, in a message that has `saying` in it.

    Texts are not part of the contract; `saying` is for the few names that a message must hold.
    """
    try:
        yield
    except Refused as error:
        refusal = error
    else:
        raise AssertionError(f"expected {statuses}, but the call succeeded")
    assert refusal.status in statuses, f"expected {statuses}, got {refusal}"
    assert saying in refusal.message, f"expected {saying!r} in {refusal.message!r}"


@dataclass(frozen=True, slots=True)
class Delivery:
    """A reserved job."""

    id: str
    queue: str
    job_type: str
    payload: tuple[bytes, str] | None
    priority: int
    attempt: int
    max_attempts: int
    custom: Mapping[str, Primitive]
    trace: tuple[str, str | None] | None
    enqueued_ms: int
    lease_expires_ms: int
    scheduled_ms: int | None


@dataclass(frozen=True, slots=True)
class Dead:
    """A drained dead letter; `cause` is the enum name in lower case, without its prefix."""

    id: str
    queue: str
    job_type: str
    payload: tuple[bytes, str] | None
    priority: int
    max_attempts: int
    custom: Mapping[str, Primitive]
    trace: tuple[str, str | None] | None
    enqueued_ms: int
    scheduled_ms: int | None
    cause: str
    failed_ms: int
    final_attempt: int
    last_reason: str | None


class Fail(Exception):
    """What a scenario's handler raises to choose the nack: the driver turns it into its own."""

    def __init__(self, kind: str, reason: str, seconds: float = 0.0) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.seconds = seconds


class Handled(Protocol):
    """The job in a handler."""

    @property
    def id(self) -> str: ...
    @property
    def job_type(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def payload(self) -> tuple[bytes, str] | None: ...
    async def extend(self, seconds: float) -> int:
        """Extend the lease, from now; the new expiry in ms."""
        ...


class RunningWorker(Protocol):
    """A worker that is polling."""

    def shutdown(self) -> None: ...
    async def finished(self) -> None:
        """Wait until `run` has returned."""
        ...


class Face(Protocol):
    """One connection of a driver: the eight RPCs typed, and the wire under them."""

    async def enqueue(self, job: NewJob) -> Ack | Rejection: ...
    async def enqueue_batch(self, jobs: Sequence[NewJob]) -> list[Ack | Rejection]: ...
    async def enqueue_atomic(self, jobs: Sequence[NewJob]) -> list[Ack]: ...
    async def reserve(
        self,
        queues: Sequence[str],
        *,
        lease: float = 30.0,
        wait: float = 0.0,
        max_jobs: int | None = None,
        worker_id: str | None = None,
    ) -> list[Delivery]: ...
    async def ack(self, job: Delivery) -> None: ...
    async def nack(self, job: Delivery, retry: str | float = "default", reason: str = "") -> bool:
        """`retry` is "default", "dead_letter" or a delay in seconds; True: dead-lettered."""
        ...

    async def extend(self, job: Delivery, seconds: float) -> int: ...
    async def drain(self, queue: str | None = None, max_records: int = 1) -> list[Dead]: ...
    async def info(self) -> Mapping[str, object]: ...

    async def call(
        self, rpc: str, request: Any, *, timeout: float = 20.0, metadata: Metadata = ()
    ) -> Any:
        """One RPC with the published protobuf messages."""
        ...

    async def call_bytes(
        self, route: str, body: bytes, *, timeout: float = 20.0, metadata: Metadata = ()
    ) -> bytes:
        """One call to any route with any message bytes."""
        ...

    def worker(
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
    ) -> AbstractAsyncContextManager[RunningWorker]:
        """Run the library's own worker; leaving shuts it down and waits for it."""
        ...

    def duplicate_handler_is_refused(self, queue: str) -> bool:
        """Whether a second handler for one type raises the library's own error."""
        ...
