"""What the server is told of a job, and what the log and the counters are told."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from ..client._reason import clean_reason
from ..errors import HandlerError
from ..lease import LEASE_LOST, TIMED_OUT, HeldLease, Phase, Verdict
from ..transport import CallError
from ..types import RetryDirective
from ..wire import convert, records
from ._acks import AckMessages
from ._log import Flood, logger
from ._outcome import NOW, Failure, growing_delay, judge, leaves, reason_to_leave

if TYPE_CHECKING:
    from ._run import Run
    from .job import RunningJob

WORKER_EXITS: Final = "worker exits"

# An enum's members are looked up slowly.
_HELD: Final = Phase.HELD
_DONE: Final = Verdict.DONE

_PATIENCE: Final = 1.5
"""Seconds that a lease must last for its job to be held back until no reserve waits: twice the
time that a forced stop leaves to one."""


class Reports:
    """Judges how jobs ended and sends their acks and nacks.

    Answers come by callback; a report that fails in passing is repeated by the lease.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._pending: dict[HeldLease, RunningJob | None] = {}
        """Reports on their way, with the job where it is an ack."""
        self._on_acked = self._acked
        self._acks = AckMessages(run.methods.ack, run.options.worker_id)
        # Jobs to be given back, and why, as soon as no reserve waits that could get them.
        self._held_back: list[tuple[RunningJob, str]] = []
        self._flood = Flood()
        self.settled = 0
        """How many reports were answered or given up."""

    # ---- jobs that ran ----

    def report(self, job: RunningJob, error: BaseException | None, now: float) -> None:
        """The job's handler has ended, with ``error`` or well."""
        lease = job.lease
        cancelled = lease.check(now)
        if error is None and cancelled is None and lease.phase is _HELD:
            self.ack(job, now)
            return
        leaving = None if error is None else reason_to_leave(error)
        if lease.phase is not Phase.HELD:
            # The handler acked or nacked by itself, through the client.
            self._run.counters.settled_by_handler += 1
            self._log_error(job, error, "after it was acked or nacked")
        elif lease.lost is not None:
            self._lost(job)
            self._log_error(job, error, "after its lease was lost")
        elif leaving is not None:
            self.give_back(job, WORKER_EXITS)
        elif cancelled is not None:
            self._report_cancelled(job, error, cancelled)
        elif error is not None:
            failure = self._judge(job, error)
            if failure.expected:
                logger.warning("%s: %s: %s", job.label, _verb(failure.directive), failure.reason)
            else:
                logger.error("%s: %s", job.label, failure.reason, exc_info=error)
            self._nack(job.label, lease, failure.directive, failure.reason)
        if leaving is not None:
            self._run.leave(leaving)
            self._run.stop.force(WORKER_EXITS)

    def _lost(self, job: RunningJob) -> None:
        self._run.counters.lost += 1
        logger.error("%s: %s, nothing is sent for it: %s", job.label, LEASE_LOST, job.lease.lost)
        job.lease.close()

    def _report_cancelled(
        self, job: RunningJob, error: BaseException | None, cancelled: str
    ) -> None:
        """The handler was cancelled, but the lease is still ours."""
        failure: Failure | None = None
        if error is not None and any(isinstance(leaf, HandlerError) for leaf in leaves(error)):
            failure = self._judge(job, error)
        else:
            self._log_error(job, error, f"after it was cancelled ({cancelled})")
        if failure is not None:
            logger.warning("%s: %s: %s", job.label, _verb(failure.directive), failure.reason)
            self._nack(job.label, job.lease, failure.directive, failure.reason)
        elif cancelled == TIMED_OUT:
            reason = f"{TIMED_OUT} after {job.timeout:.12g} s"
            logger.error("%s: %s", job.label, reason)
            self._nack(job.label, job.lease, RetryDirective.DEFAULT, reason)
        else:
            self.give_back(job, cancelled)

    def _judge(self, job: RunningJob, error: BaseException) -> Failure:
        try:
            return judge(error, job.lease.attempt)
        except Exception:  # the exception is the user's own, and so is what is asked of it
            logger.warning("%s: what its handler raised cannot be read", job.label, exc_info=True)
            reason = f"handler raised {type(error).__name__}, which cannot be read"
            return Failure(RetryDirective.DEFAULT, reason, expected=True)

    def _log_error(self, job: RunningJob, error: BaseException | None, when: str) -> None:
        if error is not None:
            logger.warning("%s: its handler failed %s", job.label, when, exc_info=error)

    # ---- jobs that did not run ----

    def give_back(self, job: RunningJob, reason: str) -> None:
        """Let the job be delivered again at once: it was no failure of its own."""
        logger.info("%s: given back: %s", job.label, reason)
        if self._run.poller.pending and job.lease.end - trio.current_time() > _PATIENCE:
            # That reserve would get it, and giving it back again would spend another attempt.
            self._held_back.append((job, reason))
            self._run.slots.reports += 1
        else:
            self._nack(job.label, job.lease, NOW, f"interrupted: {reason}", given_back=True)

    def reserve_settled(self) -> None:
        """No reserve of this worker waits any more: give back what was held back for that."""
        held_back, self._held_back = self._held_back, []
        now = trio.current_time()
        for job, reason in held_back:
            job.lease.check(now)
            if job.lease.lost is None:
                self._nack(job.label, job.lease, NOW, f"interrupted: {reason}", given_back=True)
            else:
                self._lost(job)
            self._run.slots.reported()

    def over_before_start(self, record: records.Job, lease: HeldLease) -> None:
        """The lease was over, or lost, before the job could start."""
        self.not_started(record, f"{LEASE_LOST}: {lease.lost}")
        lease.close()

    def not_started(self, record: records.Job, why: str) -> None:
        """A job is left to itself: its lease has ended, or nobody knows whether it has."""
        self._run.counters.lost += 1
        self._flood.log(
            logging.ERROR,
            "over",
            "job %s type %r attempt %d: not started, %s",
            record.id,
            record.job_type,
            record.attempt,
            why,
        )

    def unhandled(self, record: records.Job, lease: HeldLease) -> None:
        """No handler: another worker may have one, but not at once."""
        self._run.counters.unhandled += 1
        label = f"job {record.id} type {record.job_type!r} attempt {record.attempt}"
        directive = growing_delay(record.attempt)
        self._flood.log(
            logging.WARNING,
            "unhandled",
            "%s: no handler, %s",
            label,
            _verb(directive),
        )
        reason = f"no handler for job type {record.job_type!r} on this worker"
        self._nack(label, lease, directive, reason)

    def refuse(self, job: convert.MalformedJob, now: float) -> None:
        """A job that cannot be read is given up, if it can be named."""
        run = self._run
        run.counters.malformed += 1
        if not job.can_be_nacked:
            self._flood.log(
                logging.ERROR,
                "malformed",
                "reserved a job that can be neither read nor given up (id %r): %s",
                job.job_id,
                job.reason,
            )
            return
        label = f"job {job.job_id} attempt {job.attempt}"
        self._flood.log(
            logging.ERROR, "malformed", "%s: cannot be read, dead-lettered: %s", label, job.reason
        )
        lease = run.keeper.open(
            job.job_id,
            job.attempt,
            run.options.worker_id,
            asked=run.options.lease_duration,
        )
        length = run.options.lease_duration
        lease.end_at(now + length, length, own=True)
        reason = f"the worker cannot read the job: {job.reason}"
        self._nack(label, lease, RetryDirective.DEAD_LETTER, reason)

    # ---- sending ----

    def ack(self, job: RunningJob, now: float) -> None:
        """The job is done, and its lease is ours."""
        lease = job.lease
        self._pending[lease] = job
        self._run.slots.reports += 1
        acks = self._acks
        message = acks.encode(lease.job_id, lease.attempt)
        lease.settle(acks.method, message, self._on_acked, now)

    def _nack(
        self,
        label: str,
        lease: HeldLease,
        directive: RetryDirective,
        reason: str,
        *,
        given_back: bool = False,
    ) -> None:
        self._pending[lease] = None
        run = self._run
        run.slots.reports += 1
        request = convert.nack_request_to_wire(
            lease.job_id, lease.attempt, directive, clean_reason(reason), lease.worker_id
        )
        lease.settle(run.methods.nack, request, partial(self._nacked, label, given_back))

    def _acked(
        self, lease: HeldLease, verdict: Verdict, response: object, error: CallError | None
    ) -> None:
        if verdict is _DONE:
            self._run.counters.acked += 1
            if logger.isEnabledFor(logging.DEBUG):
                logger.debug("%s: acked", self._label_of(lease))
        elif verdict is Verdict.DONE_BEFORE:
            self._run.counters.acked += 1
            label = self._label_of(lease)
            logger.info("%s: acked; the answer to an earlier try was lost", label)
        else:
            self._not_reported(self._label_of(lease), "ack", verdict, error)
        self._settled(lease)

    def _label_of(self, lease: HeldLease) -> str:
        job = self._pending[lease]
        assert job is not None  # it is an ack
        return job.label

    def _nacked(
        self,
        label: str,
        given_back: bool,
        lease: HeldLease,
        verdict: Verdict,
        response: records.NackResponse | None,
        error: CallError | None,
    ) -> None:
        counters = self._run.counters
        if verdict not in (Verdict.DONE, Verdict.DONE_BEFORE):
            self._not_reported(label, "nack", verdict, error)
        elif response is not None and response.dead_lettered:
            counters.dead_lettered += 1
            logger.info("%s: is a dead letter now", label)
        elif given_back:
            counters.given_back += 1
        else:
            counters.retried += 1
        self._settled(lease)

    def _not_reported(
        self, label: str, call: str, verdict: Verdict, error: CallError | None
    ) -> None:
        counters = self._run.counters
        if verdict is Verdict.LOST:
            counters.lost += 1
            logger.error("%s: %s refused, %s: %s", label, call, LEASE_LOST, error)
        else:
            counters.unreported += 1
            logger.error("%s: %s given up, it may run again: %s", label, call, error)

    def _settled(self, lease: HeldLease) -> None:
        del self._pending[lease]
        self.settled += 1
        slots = self._run.slots
        slots.reported()
        if not slots.reports and slots.idle:
            self._run.signal.set()

    def give_up(self) -> None:
        """Wait for no answer any more."""
        self._run.unsure.give_up()
        for lease in list(self._pending):
            self._run.counters.unreported += 1
            self._flood.log(
                logging.ERROR,
                "unreported",
                "job %s attempt %d: not reported in time, its lease has to run out",
                lease.job_id,
                lease.attempt,
            )
            lease.close()
            self._settled(lease)


def _verb(directive: RetryDirective) -> str:
    if directive.kind == "dead_letter":
        return "given up"
    if directive.delay is None:
        return "to be retried"
    return f"to be retried in {directive.delay:.12g} s"
