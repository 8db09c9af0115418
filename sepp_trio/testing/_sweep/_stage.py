"""What a sweep plays on: a broker in memory, a client, a worker after the other."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Final

import trio

from sepp_trio.broker import Broker, BrokerConfig
from sepp_trio.broker._changes import Change, Observer
from sepp_trio.broker._clock import BrokerClock
from sepp_trio.broker.broker import Parts, _parts, _running
from sepp_trio.client import SeppClient
from sepp_trio.errors import JobNotFoundError
from sepp_trio.lease import LEASE_LOST, TIMED_OUT
from sepp_trio.types import EnqueueRequest, Payload
from sepp_trio.worker import JobCtx, Worker
from sepp_trio.worker._stop import GRACE_OVER

from .._hosted import hosted
from .._quiet import quiet
from .._recording import end_lease
from .._threads import clock_waits_for_threads
from ._delivery import Delivery, Swept
from ._report import Cause, Ending

_NOT_FOUND: Final = "job not found"
_TIMEOUT: Final = 3600.0
"""Seconds: the handler's timeout if it has none, for "timeout" to be a real one."""

_NO_KEEPALIVE: Final = 10.0**9
_POLL: Final = 60.0


class Stage:
    """One for a whole sweep; jobs come one at a time."""

    def __init__(
        self,
        swept: Swept,
        parts: Parts,
        client: SeppClient,
        nursery: trio.Nursery,
        request: EnqueueRequest,
        *,
        lease_duration: float,
        auto_extend: bool,
        handler_timeout: float | None,
    ) -> None:
        self.swept = swept
        self._parts = parts
        self._client = client
        self._nursery = nursery
        self._lease_duration = lease_duration
        self._auto_extend = auto_extend
        self._handler_timeout = handler_timeout
        self._worker: Worker | None = None
        self._request = request
        self._expected: Delivery | None = None
        self._told = trio.Event()
        self.one_by_one = False
        """Whether a worker stops after one delivery, so that the job waits at the broker, and not
        under its next lease, until that is expected."""
        self.crash: BaseException | None = None
        """What has ended a worker."""
        self._waiting = trio.CancelScope()
        self.story = Story()

    # ---- jobs ----

    async def enqueue(self) -> None:
        """Begin with a new job."""
        self.story.begin()
        await self._client.enqueue(self._request)

    def expect(self, delivery: Delivery) -> None:
        """Say what the next delivery is to be; the job waits for that."""
        self._expected = delivery
        self._told.set()

    async def _arrival(self) -> Delivery:
        """Wait until a delivery is expected."""
        while self._expected is None:
            self._told = trio.Event()
            await self._told.wait()
        return self._expected

    def take_over(self) -> None:
        """Let another worker have what comes; the one that there is ends with its handler."""
        self._nursery.start_soon(self.run_workers)

    async def run_workers(self) -> None:
        """Run a worker; another one when it has stopped, until somebody else has taken over."""
        worker: Worker | None = self._worker
        try:
            while worker is self._worker:
                await self._arrival()
                self._worker = worker = Worker(
                    self._client,
                    [self._request.queue],
                    self._lease_duration,
                    auto_extend=self._auto_extend,
                    handler_timeout=self._handler_timeout,
                    max_in_flight=1,
                    wait_timeout=_POLL,
                    worker_id="sweep",
                )
                worker.handle(self._request.job_type, partial(self._handle, worker))
                trio.lowlevel.current_trio_token().run_sync_soon(_take_one_by_one, worker)
                await worker.run()
        except trio.Cancelled:
            raise
        except BaseException as error:
            self.crash = error
            self._waiting.cancel()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """What waits for a worker here is cancelled when that crashes; see :attr:`crash`."""
        with trio.CancelScope() as self._waiting:
            if self.crash is not None:
                self._waiting.cancel()
            yield

    async def _handle(self, worker: Worker, payload: Payload | None, ctx: JobCtx) -> None:
        delivery = await self._arrival()
        self._expected = None
        try:
            await delivery.run(payload, ctx)
        finally:
            if self.one_by_one or worker is not self._worker:
                worker.shutdown()

    # ---- causes ----

    def strike(self, cause: Cause, ctx: JobCtx) -> str | None:
        """Let it happen, now; the reason that ``Cancelled`` will have, if there is to be one."""
        lease = ctx._lease
        if cause in ("lease lost", "takeover"):
            lease.lose(_NOT_FOUND)
            self._nursery.start_soon(self._take_lease, ctx)
            return f"{LEASE_LOST}: {_NOT_FOUND}"
        if cause == "timeout":
            lease.set_limit(trio.current_time())
            lease.cancel(TIMED_OUT)
            return TIMED_OUT
        assert self._worker is not None
        if cause == "drain":
            self._worker.shutdown()
            return None
        self._worker.shutdown(grace=0)
        return GRACE_OVER

    async def _take_lease(self, ctx: JobCtx) -> None:
        with suppress(JobNotFoundError):  # its time was up just now
            await end_lease(self._parts.committer, self._parts.engine, ctx)


def _take_one_by_one(worker: Worker) -> None:
    """Let a worker that runs reserve nothing ahead: what comes next may be for another one."""
    if worker._run is not None:
        worker._run.slots.ahead = False


class Story:
    """What the broker has committed of the job that is on the stage."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """There is a new job."""
        self._outcomes: dict[int, Ending] = {}
        self.reason: str | None = None
        self.rejected = False
        self._changed = trio.Event()

    def observe(self, changes: Sequence[Change]) -> None:
        """Take in what was committed just now."""
        for change in changes:
            if change.kind == "acked":
                self._outcomes[change.attempt] = "acked"
            elif change.kind == "dead-lettered":
                self._outcomes[change.attempt] = "dead letter"
                self.rejected = change.cause == 2
            elif change.kind in ("nacked", "expired"):
                self._outcomes.setdefault(change.attempt, "delivered again")
            if change.kind == "nacked":
                self.reason = change.reason
        self._changed.set()
        self._changed = trio.Event()

    async def outcome(self, attempt: int) -> Ending:
        """What became of the job with this delivery, once the broker knows."""
        while attempt not in self._outcomes:
            await self._changed.wait()
        return self._outcomes[attempt]


@asynccontextmanager
async def open_stage(
    swept: Swept,
    request: EnqueueRequest,
    *,
    lease_duration: float,
    auto_extend: bool,
    handler_timeout: float | None,
    causes: Sequence[Cause],
    config: BrokerConfig | None,
) -> AsyncIterator[Stage]:
    """Open it all. An exception of the block comes out as it is."""
    if handler_timeout is None and "timeout" in causes:
        handler_timeout = _TIMEOUT
    failure: BaseException | None = None
    stage: Stage | None = None

    def observe(changes: Sequence[Change], now: int, clock: BrokerClock) -> None:
        if stage is not None:
            stage.story.observe(changes)

    with clock_waits_for_threads(), swept.order.installed(), quiet(_is_no_news):
        async with (
            hosted(_broker(config or BrokerConfig(), observe)) as (parts, broker),
            hosted(broker.open_client(keepalive_interval=_NO_KEEPALIVE)) as client,
            trio.open_nursery() as nursery,
        ):
            stage = Stage(
                swept,
                parts,
                client,
                nursery,
                request,
                lease_duration=lease_duration,
                auto_extend=auto_extend,
                handler_timeout=handler_timeout,
            )
            nursery.start_soon(stage.run_workers)
            try:
                yield stage
            except BaseException as error:
                failure = error  # raised below: the nursery would make a group of it
            broker.start_drain()  # so that the worker's last reserve is answered
            nursery.cancel_scope.cancel(reason="the sweep is over")
    try:
        if failure is not None:
            raise failure
    finally:
        del failure  # it refers to this frame, which refers to it


@asynccontextmanager
async def _broker(config: BrokerConfig, observe: Observer) -> AsyncIterator[tuple[Parts, Broker]]:
    async with _parts(None, config, observe) as parts:
        broker = Broker(parts.config, parts.store, parts.committer, parts.service)
        async with _running(broker):
            yield parts, broker


def _is_no_news(record: logging.LogRecord) -> bool:
    """The worker reports each cancel."""
    return record.name in ("sepp_trio.worker", "sepp_trio.lease")
