"""One run of a worker: jobs come in, run and are reported, and how it all ends."""

from __future__ import annotations

import contextvars
import logging
from functools import partial
from typing import Final

import trio

from ..client import SeppClient
from ..errors import ClientClosedError
from ..lease import Answer, Beats, HeldLease, Phase, Terms, Timer, epoch_seconds
from ..wire import Slice, convert, records
from ._log import logger
from ._options import Options
from ._poll import FatalError, Poller
from ._receive import JobReader
from ._reports import Reports
from ._signal import Signal
from ._slots import Slots
from ._statistics import Counters
from ._stop import Stop
from ._unsure import Unsure
from .job import RunningJob
from .registry import Registry

WORKER_CANCELLED: Final = "worker cancelled"
CLIENT_CLOSED: Final = "client closed"

_HELD: Final = Phase.HELD  # an enum's members are looked up slowly

_NOT_TAKEN_IN: Final = "a reserved job could not be taken in; its lease runs out"

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
        self.starting = 0
        """Jobs whose tasks have not taken their first step."""
        self.slots = Slots(
            limit, ahead=options.auto_extend, start=self._start, room=self._look_at_room
        )
        self.poller = Poller(self)
        self.reports = Reports(self)
        self.stop = Stop(self)
        self.unsure = Unsure(self)
        self._client = client
        self._read_job = JobReader().read
        self._usual: float | None = None
        self._odd: HeldLease | None = None
        """The latest that was granted something else than usual."""
        self._terms: Terms
        """What the latest job's lease was, and out of which answer."""
        self._granted_end: records.Timestamp | None = None
        self._granted_sent = 0.0
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
            # Trio makes up a name in more steps than it takes to start the task.
            self._start_job = partial(nursery.start_soon, name=RunningJob.__qualname__)
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

    def receive(self, jobs: list[bytes | Slice], sent: float, now: float) -> int:
        """Take in the jobs of an answer; how many are for a handler. Never raises."""
        self.counters.received += len(jobs)
        good = 0
        for raw in jobs:
            try:
                good += self._receive(raw, sent, now)
            except Exception:
                logger.exception(_NOT_TAKEN_IN)
        return good

    def _receive(self, raw: bytes | Slice, sent: float, now: float) -> bool:
        record = self._read_job(raw)
        if isinstance(record, convert.MalformedJob):
            self.reports.refuse(record, now)
            return False
        options = self.options
        lease = HeldLease(
            self.keeper,
            record.id,
            record.attempt,
            options.worker_id,
            options.lease_duration,
            options.auto_extend_interval,
            True,  # its scope is shielded
            self._usual,
            self.beats,
        )
        expires_at = record.lease_expires_at
        if expires_at != self._granted_end or sent != self._granted_sent:
            assert expires_at is not None  # its reader has seen to it
            self._read_grant(lease, expires_at, sent, now)
        terms = self._terms
        lease.take(terms)
        if now >= lease.due:
            if not terms.certain:
                lease.close()
                self.unsure.wait(record, bytes(raw), terms.answer)
                return True
            if lease.check(now) is not None:
                self.reports.over_before_start(record, lease)
                return True
        entry = self.registry.find(record.job_type)
        if entry is None:
            self.reports.unhandled(record, lease)
            return True
        job = RunningJob(record, lease, self, entry)
        auto_extend = options.auto_extend
        if auto_extend:
            self.keeper.start_beats(lease, now)
        if self.stop.forced is not None:
            self.reports.give_back(job, self.stop.forced)
            return True
        self.jobs[job] = None
        if not self._looking:
            self._looking = True
            self.keeper.wheel.start(self._look_timer, now + _LOOK_EVERY)
        self.slots.admit(job, now)
        if not auto_extend and job.started_at is None and job in self.jobs:
            # It waits for a slot, or for the limit of its type: that must not cost it the
            # lease, and an attempt. When it starts it gets a whole lease, and no more.
            self.keeper.start_beats(lease, now)
        return True

    def receive_again(self, raw: bytes, answer: Answer) -> None:
        """Take in a job whose lease can be read, now that the server's time is known."""
        expires_at, asked, sent, received = answer
        self._granted_end, self._granted_sent = expires_at, sent
        clock = self.keeper.clock
        grant = clock.reread_unheld(epoch_seconds(expires_at), asked, sent, received)
        self._odd = None
        self._learn(Terms(grant, answer), received)
        try:
            self._receive(raw, sent, trio.current_time())
        except Exception:
            logger.exception(_NOT_TAKEN_IN)

    def _learn(self, terms: Terms, received: float) -> None:
        self._terms = terms
        if terms.end > received:  # else nobody knows what was granted
            self._usual = terms.length

    def _read_grant(
        self, lease: HeldLease, expires_at: records.Timestamp, sent: float, now: float
    ) -> None:
        """What the server granted; the same for most jobs of one answer."""
        asked = self.options.lease_duration
        odd = self._odd
        if odd is not None and odd not in self.keeper.doubtful:
            # It was read again, with the server's time: that is what is granted now.
            self._usual, self._odd = odd.usual, None
        self._granted_end, self._granted_sent = expires_at, sent
        grant = self.keeper.clock.grant(epoch_seconds(expires_at), asked, sent, now, self._usual)
        self._learn(Terms(grant, (expires_at, asked, sent, now)), now)
        if not grant.certain and grant.end > now:
            self._odd = lease

    def _start(self, job: RunningJob, now: float) -> bool:
        """A slot is free for this job; whether it starts."""
        lease = job.lease
        if (now >= lease.due or lease.cancel_reason is not None) and lease.check(now) is not None:
            del self.jobs[job]
            self.reports.over_before_start(job.record, lease)
            return False
        job.started_at = now
        if lease.heartbeat is not None and not self.options.auto_extend:
            lease.end_beats()
        # This runs in the channel's reader or in another job: the handler is to see the
        # context variables of Worker.run instead.
        self._context.run(self._start_job, job.handle)
        self.starting += 1
        return True

    @trio.lowlevel.enable_ki_protection
    def all_begun(self) -> None:
        """The last of the jobs that were to start takes its first step: the loop may reserve."""
        if self.poller.pending is None and self.slots.wanted() > 0:
            self.signal.set()

    @trio.lowlevel.enable_ki_protection
    def ended(self, job: RunningJob, error: BaseException | None) -> None:
        """The job's handler has ended, well or with ``error``."""
        if self.starting or self.poller.pending is not None:
            self._finish(job, error)
        elif self.slots.running > 1:
            # Others may end in this turn of the scheduler: the loop reserves for all of them.
            self._finish(job, error)
            self.signal.set()
        else:
            with self.channel.in_one_write:
                self._finish(job, error)
                self.poller.ask()

    def _finish(self, job: RunningJob, error: BaseException | None) -> None:
        now = self.clock.current_time()
        del self.jobs[job]
        if self.overdue:
            self.overdue.pop(job, None)
        assert job.started_at is not None
        lease = job.lease
        try:
            if (
                error is None
                and now < lease.due
                and lease.cancel_reason is None
                and lease.phase is _HELD
            ):
                self.reports.ack(job, now)
            else:
                self.reports.report(job, error, now)
        finally:
            self.slots.ended(job.entry, now - job.started_at, now)
            if not self.jobs and self.slots.idle:
                self.signal.set()

    def _look_at_room(self) -> None:
        # Called for each job.
        if self.poller.pending is None:
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
                    job.label,
                    age,
                    job.lease.lost or job.lease.cancel_reason,
                )
