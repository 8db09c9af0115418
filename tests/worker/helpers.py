"""A scripted sepp server that hands out jobs and keeps count, and ways to run a worker on it."""

from __future__ import annotations

import uuid
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from sepp_trio import (
    BrokerConfig,
    EnqueueRequest,
    JobCtx,
    LimitsConfig,
    Payload,
    SeppClient,
    Worker,
)
from sepp_trio.testing import CallLog, JobHistory, Jobs
from sepp_trio.wire import convert, decoder_of, records
from tests.client.fake import FakeServer, info_record, job_record, reserved, server_time


class Link(trio.abc.Stream):
    """A connection that can stop to carry bytes without a word."""

    def __init__(self, inner: trio.abc.Stream) -> None:
        self._inner = inner
        self._flowing = trio.Event()
        self._flowing.set()

    def freeze(self) -> None:
        """Carry nothing from now on."""
        self._flowing = trio.Event()

    def thaw(self) -> None:
        """Carry what has waited, and the rest."""
        self._flowing.set()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._flowing.wait()
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._flowing.wait()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self._inner.receive_some(max_bytes)
        await self._flowing.wait()
        return data

    async def aclose(self) -> None:
        await self._inner.aclose()


@dataclass
class Leased:
    """A delivery, and what became of it."""

    job: records.Job
    expires: float
    asks: int = 0
    calls: list[tuple[str, float]] = field(default_factory=list)


class Sepp(FakeServer):
    """Gives each job to the next reserve and grants every wish, unless told otherwise.

    ``ahead`` is how far its clock is ahead of Trio's, ``longest`` the longest lease. ``fail``
    answers the next calls of an RPC otherwise. Leases do not end here: tests look at when
    things happen instead.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__(nursery)
        self.ahead = 0.0
        self.longest = 300.0
        self.ready: deque[records.Job | bytes] = deque()
        self.leases: dict[str, Leased] = {}
        self.info: dict[str, Any] = {}
        self.reserve_times: list[float] = []
        self.extend_times: list[float] = []
        self.acks: list[str] = []
        self.nacks: list[records.NackRequest] = []
        self._failing: defaultdict[str, deque[Any]] = defaultdict(deque)
        self.links: list[Link] = []
        self.unreachable = False
        self._arrived = trio.Event()
        self.script("Reserve", self._reserve)
        self.script("Extend", self._extend)
        self.script("Ack", self._ack)
        self.script("Nack", self._nack)
        self.script("GetServerInfo", self._info)

    async def connect(self) -> trio.abc.Stream:
        """Dial this server, if it is reachable."""
        if self.unreachable:
            await trio.sleep_forever()
        link = Link(await super().connect())
        self.links.append(link)
        return link

    def black_hole(self) -> None:
        """Carry no byte any more, on connections old and new."""
        self.unreachable = True
        for link in self.links:
            link.freeze()

    def heal(self) -> None:
        """Carry on."""
        self.unreachable = False
        for link in self.links:
            link.thaw()

    async def crash(self) -> None:
        """Drop all connections and be gone, until ``heal``."""
        self.unreachable = True
        links, self.links = self.links, []
        for link in links:
            await link.aclose()

    def put(self, *job_types: str, **members: Any) -> list[str]:
        """Enqueue a job of each type; their ids."""
        ids = []
        for job_type in job_types:
            job = job_record(**{"id": str(uuid.uuid4()), "job_type": job_type, **members})
            self.ready.append(job)
            ids.append(job.id)
        self._arrived.set()
        return ids

    def put_raw(self, data: bytes) -> None:
        """Hand out bytes as they are."""
        self.ready.append(data)
        self._arrived.set()

    def fail(self, rpc: str, *answers: Any) -> None:
        """Answer the next calls of ``rpc`` so: a status, an error, or an async function."""
        self._failing[rpc].extend(answers)

    def expiry(self, length: float) -> records.Timestamp:
        """The end of a lease that begins now."""
        return server_time(self.ahead + length)

    async def _scripted(self, rpc: str, request: Any) -> Any:
        failing = self._failing[rpc]
        if not failing:
            return None
        answer = failing.popleft()
        if callable(answer):
            answer = await answer(request)
        if isinstance(answer, Status):
            raise GRPCError(answer, f"scripted {answer.name}")
        if isinstance(answer, GRPCError):
            raise answer
        return answer

    async def _reserve(self, request: records.ReserveRequest) -> Any:
        self.reserve_times.append(trio.current_time())
        answer = await self._scripted("Reserve", request)
        if answer is not None:
            return answer
        with trio.move_on_after(convert.seconds_from_wire(request.wait_timeout)):
            while not self.ready:
                self._arrived = trio.Event()
                await self._arrived.wait()
        length = min(convert.seconds_from_wire(request.lease_duration), self.longest)
        jobs: list[records.Job | bytes] = []
        while self.ready and len(jobs) < (request.max_jobs or 1):
            job = self.ready.popleft()
            if isinstance(job, records.Job):
                job.lease_expires_at = self.expiry(length)
                self.leases[job.id] = Leased(job, trio.current_time() + length)
            jobs.append(job)
        return reserved(*jobs)

    async def _extend(self, request: records.ExtendRequest) -> Any:
        self.extend_times.append(trio.current_time())
        answer = await self._scripted("Extend", request)
        if answer is not None:
            return answer
        length = min(convert.seconds_from_wire(request.lease_duration), self.longest)
        self.leases[request.job_id].expires = trio.current_time() + length
        return records.ExtendResponse(request.job_id, self.expiry(length))

    async def _ack(self, request: records.AckRequest) -> Any:
        answer = await self._scripted("Ack", request)
        self.acks.append(request.job_id)
        return answer or records.AckResponse(request.job_id)

    async def _nack(self, request: records.NackRequest) -> Any:
        answer = await self._scripted("Nack", request)
        self.nacks.append(request)
        dead = request.retry is not None and request.retry.dead_letter is not None
        return answer or records.NackResponse(request.job_id, dead)

    async def _info(self, request: Any) -> Any:
        answer = await self._scripted("GetServerInfo", request)
        members = {"server_time": server_time(self.ahead), **self.info}
        return answer or info_record(**members)


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[None]:
    """Run a worker around the block, then drain it."""
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        yield
        worker.shutdown()


async def until(condition: Callable[[], object], limit: float = 600.0) -> None:
    """Wait until the condition holds, in steps that are short at first."""
    step = 0.001
    with trio.fail_after(limit):
        while not condition():
            await trio.sleep(step)
            step = min(step * 1.05, 0.05)


def worker_on(
    client: SeppClient, lease: float = 30.0, *, queues: Sequence[str] = ("emails",), **options: Any
) -> Worker:
    """A worker for the queue ``emails``, without jitter in its name."""
    return Worker(client, queues, lease, **{"worker_id": "w", **options})


async def at_once(payload: Payload | None, ctx: JobCtx) -> None:
    """A handler that has nothing to do."""


def sleeper(seconds: float) -> Callable[[Payload | None, JobCtx], Any]:
    """A handler that takes its time."""

    async def handle(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(seconds)

    return handle


# ---- on the real server ----

RETRY_DELAY: Any = pytest.approx(6.1, abs=0.9)
"""Seconds, by the queue's policy (the server takes off up to a quarter): so a plain retry can be
told from one that was asked for."""

CONFIG = BrokerConfig(limits=LimitsConfig(retry_delay_ms=7000))


class Put:
    """Enqueues jobs into ``emails``."""

    def __init__(self, producer: SeppClient) -> None:
        self._producer = producer

    async def __call__(self, *job_types: str, **fields: Any) -> list[str]:
        """A job of each type, with these fields; their ids."""
        ids: list[str] = []
        for start in range(0, len(job_types), 256):
            requests = [
                EnqueueRequest("emails", job_type, **fields)
                for job_type in job_types[start : start + 256]
            ]
            ids += [ack.job_id for ack in await self._producer.enqueue_atomic(requests)]
        return ids


class Watched:
    """A handler that takes its time and says when it began, was cancelled, and why."""

    def __init__(self, seconds: float = 3600) -> None:
        self.seconds = seconds
        self.began: list[float] = []
        self.cancelled: list[float] = []
        self.reasons: list[str | None] = []

    async def __call__(self, payload: Payload | None, ctx: JobCtx) -> None:
        self.began.append(trio.current_time())
        try:
            await trio.sleep(self.seconds)
        except trio.Cancelled:
            self.cancelled.append(trio.current_time())
            self.reasons.append(ctx.cancel_reason)
            raise


def asked(calls: CallLog, rpc: str) -> list[Any]:
    """The requests of all calls of a kind."""
    decode = decoder_of(getattr(records, f"{rpc}Request"))
    return [decode(call.request) for call in calls.of(rpc)]


def ids(jobs: Jobs) -> set[str]:
    """Their ids."""
    return {job.id for job in jobs}


def given_back(job: JobHistory, reason: str) -> bool:
    """Whether its last delivery was ended by a nack for delivery at once, for this reason."""
    nacks = [event for event in job.events if event.kind == "nacked"]
    return (
        job.state == "ready"
        and nacks[-1].reason == f"interrupted: {reason}"
        and nacks[-1].seconds == 0
    )
