"""One job: one task, one scope, one outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lease import HeldLease
from ..types import Payload
from ..wire import records
from .context import JobCtx
from .registry import Entry

if TYPE_CHECKING:
    from ._run import Run


class RunningJob(JobCtx):
    """A received job on its way through the worker; handlers know it as their ``JobCtx``.

    Its lease's scope is shielded: a cancel of ``Worker.run`` reaches the handler by way of
    :meth:`HeldLease.cancel`, so that every cancel has its reason and ends in the same way.
    """

    __slots__ = ("entry", "run", "started_at", "timeout")

    if TYPE_CHECKING:
        record: records.Job
        lease: HeldLease
    else:
        # The worker's names for what handlers are not to touch.
        record = JobCtx._record
        lease = JobCtx._lease

    def __init__(self, record: records.Job, lease: HeldLease, run: Run, entry: Entry) -> None:
        # All of it here, because there is one of these for each job.
        self._record = record
        self._lease = lease
        self._stopping = run.stop.draining
        self._custom = None
        self.run = run
        self.entry = entry
        self.timeout = run.options.handler_timeout if entry.timeout is None else entry.timeout
        self.started_at: float | None = None

    @property
    def label(self) -> str:
        """What the log calls it."""
        job = self._record
        return f"job {job.id} type {job.job_type!r} attempt {job.attempt}/{job.max_attempts}"

    async def handle(self) -> None:
        """Run the handler under the lease; the task of this job."""
        lease = self._lease
        error: BaseException | None = None
        run = self.run
        try:
            run.starting -= 1
            if not run.starting:
                run.all_begun()
            if self.timeout is not None and self.started_at is not None:
                lease.set_limit(self.started_at + self.timeout)
            sent = self._record.payload  # judged at receipt
            payload = None if sent is None else Payload._of_checked(sent.data, sent.encoding)
            assert lease.scope is not None  # its end was set at receipt
            with lease.scope:
                await self.entry.call(payload, self)
        except BaseException as caught:
            # The scope is shielded and takes its own Cancelled: none from outside comes here.
            # What a job raises is its own affair; ended() sees to those who want to leave.
            error = caught
        run.ended(self, error)
        error = None  # its traceback refers to this frame, which would refer to it
