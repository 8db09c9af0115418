"""What a handler gets besides the payload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TypeVar

import trio

from ..lease import HeldLease
from ..types import Duration, Primitive, TraceContext
from ..types._checks import seconds
from ..wire import convert, custom_of, records, trace_context_of

T = TypeVar("T")


class JobCtx:
    """The job that a handler works on, and its lease.

    Properties and methods without ``await`` may be used from the handler's thread as well.
    """

    __slots__ = ("_custom", "_lease", "_record", "_stopping")

    _record: records.Job
    _lease: HeldLease
    _stopping: trio.Event
    _custom: Mapping[str, Primitive] | None

    def __str__(self) -> str:
        job = self._record
        return f"job {job.id} ({job.job_type}, attempt {job.attempt}/{job.max_attempts})"

    def __repr__(self) -> str:
        return f"<JobCtx of {self}>"

    # ---- the job ----

    @property
    def id(self) -> str:
        """The job's id."""
        return self._record.id

    @property
    def queue(self) -> str:
        """The queue that it came from."""
        return self._record.queue

    @property
    def job_type(self) -> str:
        """Its type."""
        return self._record.job_type

    @property
    def priority(self) -> int:
        """0 (lowest) to 9."""
        return self._record.priority

    @property
    def attempt(self) -> int:
        """Which delivery this is: 1 for the first."""
        return self._record.attempt

    @property
    def max_attempts(self) -> int:
        """How many deliveries there will be at most."""
        return self._record.max_attempts

    @property
    def is_last_attempt(self) -> bool:
        """Whether a failure now makes a dead letter of it."""
        return self._record.attempt >= self._record.max_attempts

    @property
    def enqueued_at(self) -> datetime:
        """When the server took it in, by the server's clock."""
        assert self._record.enqueued_at is not None  # checked at receipt
        return convert.datetime_from_wire(self._record.enqueued_at, "enqueued_at")

    @property
    def scheduled_at(self) -> datetime | None:
        """When its producer wanted it to run, if at a certain time."""
        if self._record.scheduled_at is None:
            return None
        try:
            return convert.datetime_from_wire(self._record.scheduled_at, "scheduled_at")
        except ValueError:
            return None  # the server echoes what it was given, readable or not

    @property
    def custom(self) -> Mapping[str, Primitive]:
        """The producer's own values."""
        if self._custom is None:
            self._custom = convert.custom_from_wire(custom_of(self._record))
        return self._custom

    @property
    def trace_context(self) -> TraceContext | None:
        """The trace that it belongs to; ``None`` also for one that is not valid."""
        if self._record.trace_context is None:
            return None
        try:
            return convert.trace_context_from_wire(trace_context_of(self._record))
        except ValueError:
            return None

    @property
    def worker_id(self) -> str | None:
        """The id that the worker goes by."""
        return self._lease.worker_id

    # ---- the lease ----

    @property
    def lease_expires_at(self) -> datetime:
        """The lease's end as last heard, by the server's clock."""
        assert self._lease.expires_at is not None  # set at receipt
        return convert.lease_end_from_wire(self._lease.expires_at)

    @property
    def lease_deadline(self) -> float:
        """The lease's end on Trio's clock, never later than the server's."""
        return self._lease.end

    def remaining(self) -> float:
        """Seconds until the lease ends, 0 when it has."""
        return max(self._lease.end - _in_trio(trio.current_time), 0.0)

    async def extend(self, duration: Duration) -> datetime:
        """Set the lease to ``duration`` seconds from now, as far as the server grants them.

        The heartbeat never shortens it again. A checkpoint; a cancel may come after the
        server has extended the lease.

        Returns:
            The lease's new end, by the server's clock.

        Raises:
            LeaseError: the lease is lost, or the job was acked or nacked already.
            ClientError: the call failed; the lease stays as it was.
        """
        return await self._lease.extend(seconds(duration, "duration"))

    def extend_from_thread(self, duration: Duration) -> datetime:
        """``extend`` for a handler that runs in a thread; blocks it.

        Raises:
            trio.Cancelled: the handler is cancelled.
        """
        return trio.from_thread.run(self.extend, duration)

    # ---- the worker ----

    @property
    def stopping(self) -> bool:
        """Whether the worker drains: a good time to come to an end."""
        return self._stopping.is_set()

    async def wait_stopping(self) -> None:
        """Wait until the worker drains. A checkpoint."""
        await self._stopping.wait()

    @property
    def cancel_reason(self) -> str | None:
        """Why the worker cancelled the handler; ``None`` if it did not.

        ``"lease lost"``, ``"handler timed out"``, ``"shutdown grace over"``,
        ``"worker cancelled"``, ``"worker exits"`` or ``"client closed"``. A scope of the
        handler's own does not show.
        """
        return self._lease.check(_in_trio(trio.current_time))


def _in_trio(function: Callable[[], T]) -> T:
    """Call ``function`` in the run of Trio that this thread belongs to."""
    if trio.lowlevel.in_trio_run():
        return function()
    return trio.from_thread.run_sync(function)
