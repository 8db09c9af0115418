"""What a sweep plays on: a broker in memory, a client, a worker after the other."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Final

import trio

from sepp_trio.broker import BrokerConfig
from sepp_trio.client import SeppClient
from sepp_trio.errors import JobNotFoundError
from sepp_trio.lease import LEASE_LOST, TIMED_OUT
from sepp_trio.types import EnqueueRequest, Payload
from sepp_trio.worker import JobCtx, Worker
from sepp_trio.worker._stop import GRACE_OVER

from .._history import JobHistory
from .._hosted import hosted
from .._lasting import NO_KEEPALIVE, lasting
from .._limits import NO_LIMIT
from .._quiet import quiet
from .._recording import RecordingBroker, open_recording_broker
from .._threads import clock_waits_for_threads
from ._delivery import Delivery, Swept
from ._leap import leaping
from ._report import Cause, Ending

_NOT_FOUND: Final = "job not found"
_TIMEOUT: Final = 3600.0
"""Seconds: the handler's timeout if it has none, for "timeout" to be a real one."""

_POLL: Final = 60.0


class Stage:
    """One for a whole sweep; jobs come one at a time."""

    def __init__(
        self,
        swept: Swept,
        broker: RecordingBroker,
        client: SeppClient,
        nursery: trio.Nursery,
        request: EnqueueRequest,
        *,
        lease_duration: float,
        auto_extend: bool,
        handler_timeout: float | None,
    ) -> None:
        self.swept = swept
        self._broker = broker
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
        self._job_id = ""

    # ---- jobs ----

    async def empty(self) -> None:
        """Let the broker have no jobs at all."""
        await self._broker._clear()

    async def enqueue(self) -> None:
        """Begin with a new job."""
        self._job_id = (await self._client.enqueue(self._request)).job_id

    async def outcome(self, attempt: int) -> Ending:
        """What became of the job with this delivery, once the broker knows."""
        await self._broker.until(lambda _: _ending(self.job, attempt) is not None, limit=NO_LIMIT)
        ending = _ending(self.job, attempt)
        assert ending is not None
        return ending

    @property
    def job(self) -> JobHistory:
        """The one that is on the stage, as far as it has come."""
        return self._broker.job(self._job_id)

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

    def start_soon(self, async_fn: Callable[..., Awaitable[object]], *args: object) -> None:
        """Start a task that ends with the sweep at the latest."""
        self._nursery.start_soon(async_fn, *args)

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
                worker.catch_all(partial(self._handle, worker))
                trio.lowlevel.current_trio_token().run_sync_soon(_keep_to_one, worker)
                await worker.run()
        except trio.Cancelled:
            raise
        except BaseException as error:
            self._break_down(error)

    def _break_down(self, error: BaseException) -> None:
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
        if ctx.id != self._job_id:
            self._break_down(
                ValueError(
                    f"a job of type {ctx.job_type!r} came to queue {ctx.queue!r}, which the swept"
                    " job needs for itself: give the sweep another queue="
                )
            )
            await trio.sleep_forever()
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
            await self._broker.lose_lease(ctx)


def _keep_to_one(worker: Worker) -> None:
    """Let a worker that runs reserve nothing ahead: what comes next may be for another one. And
    not look every second how its handlers are: virtual seconds cost too much for that."""
    if worker._run is not None:
        worker._run.slots.ahead = False
        worker._run._looking = True


def _ending(job: JobHistory, attempt: int) -> Ending | None:
    kinds = {event.kind for event in job.events if event.attempt == attempt}
    if "acked" in kinds:
        return "acked"
    if "dead-lettered" in kinds:
        return "dead letter"
    return "delivered again" if kinds & {"nacked", "expired"} else None


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
    broker: RecordingBroker | None,
) -> AsyncIterator[Stage]:
    """Open it all, but for a broker that is given. An exception of the block comes out as it is."""
    if handler_timeout is None and "timeout" in causes:
        handler_timeout = _TIMEOUT
    failure: BaseException | None = None
    with clock_waits_for_threads(), leaping(), swept.order.installed(), quiet(_is_no_news):
        async with (
            _serving(broker, config) as serving,
            hosted(serving.open_client(keepalive_interval=NO_KEEPALIVE)) as client,
            trio.open_nursery() as nursery,
        ):
            stage = Stage(
                swept,
                serving,
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
            serving._committer.send_home()  # so that the worker's last reserve is answered
            nursery.cancel_scope.cancel(reason="the sweep is over")
    try:
        if failure is not None:
            raise failure
    finally:
        del failure  # it refers to this frame, which refers to it


@asynccontextmanager
async def _serving(
    broker: RecordingBroker | None, config: BrokerConfig | None
) -> AsyncIterator[RecordingBroker]:
    """The broker that was given, or one of our own."""
    if broker is None:
        own = open_recording_broker(config=lasting(config or BrokerConfig()))
        async with hosted(own) as broker:
            yield broker
        return
    if config is not None:
        raise ValueError("config is that of broker: give one of the two")
    left = broker.jobs().where(lambda job: not job.is_done)
    if left:
        raise ValueError(f"broker must have no jobs, for the sweep removes them, but has {left!r}")
    yield broker


def _is_no_news(record: logging.LogRecord) -> bool:
    """The worker reports each cancel."""
    return record.name in ("sepp_trio.worker", "sepp_trio.lease")
