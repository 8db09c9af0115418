"""One run of a worker: jobs come in, run and are reported, and how it all ends."""

from __future__ import annotations

import contextvars
import logging
from typing import Final

import trio

from ..client import SeppClient
from ..errors import ClientClosedError
from ..lease import Beats, Grant, Timer, epoch_seconds
from ..wire import convert, decoder_of, records
from ._log import logger
from ._options import Options
from ._poll import FatalError, Poller
from ._receive import read_job
from ._reports import Reports
from ._signal import Signal
from ._slots import Slots
from ._statistics import Counters
from ._stop import Stop
from .job import RunningJob
from .registry import Registry

WORKER_CANCELLED: Final = "worker cancelled"
CLIENT_CLOSED: Final = "client closed"

_LOOK_EVERY = 1.0
"""Seconds between two looks for handlers that do not react to their cancel."""


class Run:
    """Everything that lives as long as ``Worker.run``."""

    def __init__(
        self, client: SeppClient, options: Options, registry: Registry, limit: int
    ) -> None:
        self.options = options
        self.registry = registry
        self.channel = client._channel
        self.keeper = client._keeper
        self.methods = client._methods
        self.clock = trio.lowlevel.current_clock()
        self.counters = Counters()
        self.beats = Beats()
        self.signal = Signal()
        self.jobs: dict[RunningJob, None] = {}
        """All jobs whose handler has not ended."""
        self.overdue: dict[RunningJob, float] = {}
        """Those that go on after their cancel, with the age at which to say so again."""
        self.slots = Slots(
            limit, ahead=options.auto_extend, start=self._start, room=self._look_at_room
        )
        self.poller = Poller(self)
        self.reports = Reports(self)
        self.stop = Stop(self)
        self._client = client
        self._decode_job = decoder_of(records.Job)
        self._usual: float | None = None
        self._grant: Grant | None = None
        self._granted_by: tuple[records.Timestamp, float] | None = None
        self._look_timer = Timer(self._look_for_overdue)
        self._looking = False
        self._exit: BaseException | None = None
        self._context = contextvars.copy_context()

    # ---- from start to end ----

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Work until the worker has drained.

        Raises:
            SeppError: the server will not have us, or the client is closed.
        """
        failure: BaseException | None = None
        async with trio.open_nursery() as nursery:
            self._start_soon = nursery.start_soon
            try:
                await self._work(task_status)
            except BaseException as error:
                # Raised below: here the nursery would make a group of it. Jobs are shielded
                # from the cancel that this may be; the nursery waits until they have ended.
                failure = error
                closed = isinstance(error, ClientClosedError)
                self.stop.force(CLIENT_CLOSED if closed else WORKER_CANCELLED)
        if failure is None:
            return
        settled = -1
        while (self.poller.pending or not self.slots.idle) and self.reports.settled > settled:
            settled = self.reports.settled
            with trio.move_on_after(self.stop.RELEASE, shield=True):
                while self.poller.pending or not self.slots.idle:
                    await self.signal.wait()
        self.reports.give_up()
        try:
            raise failure
        finally:
            del failure  # it refers to this frame, which refers to it

    async def _work(self, task_status: trio.TaskStatus[None]) -> None:
        fatal: FatalError | None = None
        try:
            await self.poller.start()
            await self.poller.loop(task_status)
        except FatalError as error:
            logger.error("the server will not have this worker: %s", error.error)
            fatal = error
            self.stop.drain()
        while self.jobs or not self.slots.idle:
            await self.signal.wait()
            self.leave_if_told()
        self.leave_if_told()
        if fatal is not None:
            raise fatal.error from fatal.__cause__

    def leave(self, error: BaseException) -> None:
        """A handler wants the program to end: let ``run`` end with its error."""
        if self._exit is None:
            self._exit = error
        self.signal.set()

    def leave_if_told(self) -> None:
        """Raise what a handler wants to leave with."""
        if self._exit is not None:
            raise self._exit

    def closed_error(self) -> ClientClosedError:
        """The error of a client whose block has ended."""
        return self._client._closed_error()

    # ---- jobs come in ----

    def receive(self, raw: bytes, sent: float, now: float) -> bool:
        """Take in a reserved job; whether it is one for a handler. Never raises."""
        try:
            return self._receive(raw, sent, now)
        except Exception:
            logger.exception("a reserved job could not be taken in; its lease runs out")
            return False

    def _receive(self, raw: bytes, sent: float, now: float) -> bool:
        self.counters.received += 1
        options = self.options
        record = read_job(raw, self._decode_job)
        if isinstance(record, convert.MalformedJob):
            self.reports.refuse(record, now)
            return False
        lease = self.keeper.open(
            record.id,
            record.attempt,
            options.worker_id,
            asked=options.lease_duration,
            interval=options.auto_extend_interval,
            shield=True,
            usual=self._usual,
            count=self.beats,
        )
        expires_at = record.lease_expires_at
        assert expires_at is not None  # read_job has seen to it
        lease.take(self._grant_of(expires_at, sent, now), expires_at, lease.asked, now)
        if lease.check(now) is not None:
            self.reports.over_before_start(record, lease)
            return True
        entry = self.registry.find(record.job_type)
        if entry is None:
            self.reports.unhandled(record, lease)
            return True
        job = RunningJob(self, record, lease, entry)
        if options.auto_extend:
            self.keeper.start_beats(lease, now)
        if self.stop.forced is not None:
            self.reports.give_back(job, self.stop.forced)
            return True
        self.jobs[job] = None
        if not self._looking:
            self._looking = True
            self.keeper.wheel.start(self._look_timer, now + _LOOK_EVERY)
        self.slots.admit(job, now)
        if not options.auto_extend and job in self.jobs and job.started_at is None:
            # It waits for a slot, or for the limit of its type: that must not cost it the
            # lease, and an attempt. When it starts it gets a whole lease, and no more.
            self.keeper.start_beats(lease, now)
        return True

    def _grant_of(self, expires_at: records.Timestamp, sent: float, now: float) -> Grant:
        """What the server granted; the same for most jobs of one answer."""
        if self._grant is None or self._granted_by != (expires_at, sent):
            self._granted_by = (expires_at, sent)
            self._grant = self.keeper.clock.grant(
                epoch_seconds(expires_at), self.options.lease_duration, sent, now, self._usual
            )
            self._usual = self._grant.length
        return self._grant

    def _start(self, job: RunningJob, now: float) -> bool:
        """A slot is free for this job; whether it starts."""
        if job.lease.check(now) is not None:
            del self.jobs[job]
            self.reports.over_before_start(job.record, job.lease)
            return False
        job.started_at = now
        if job.lease.heartbeat is not None and not self.options.auto_extend:
            job.lease.end_beats()
        # This runs in the channel's reader or in another job: the handler is to see the
        # context variables of Worker.run instead.
        self._context.run(self._start_soon, job.handle)
        return True

    @trio.lowlevel.enable_ki_protection
    def ended(self, job: RunningJob, error: BaseException | None) -> None:
        """The job's handler has ended."""
        now = trio.current_time()
        del self.jobs[job]
        if self.overdue:
            self.overdue.pop(job, None)
        assert job.started_at is not None
        try:
            self.reports.report(job, error, now)
        finally:
            self.slots.ended(job.entry, now - job.started_at, now)

    def _look_at_room(self) -> None:
        if self.poller.pending is None or self.stop.draining.is_set():
            self.signal.set()

    def _look_for_overdue(self) -> None:
        self._looking = bool(self.jobs)
        if not self._looking:
            return
        now = trio.current_time()
        self.keeper.wheel.start(self._look_timer, now + _LOOK_EVERY)
        for job in self.jobs:
            lease = job.lease
            if lease.due > now and lease.cancel_reason is None:
                continue  # looked at without a call: there may be tens of thousands
            if job.started_at is None or lease.check(now) is None:
                continue
            age = now - job.lease.cancelled_at
            if age >= self.overdue.get(job, _LOOK_EVERY):
                self.overdue[job] = 2 * age
                logger.log(
                    logging.WARNING,
                    "%s goes on %.1f s after it was cancelled (%s); its slot stays taken",
                    job,
                    age,
                    job.lease.lost or job.lease.cancel_reason,
                )
