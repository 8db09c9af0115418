"""``hold``: the primitive for hand-rolled loops, with the worker's safety."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from math import isfinite

import trio

from ..errors import LeaseLostError
from ..types import Duration, LeasedJob, RetryDirective
from ..types._checks import seconds as checked_seconds
from ..wire import convert, records
from ._held import LET_GO, HeldLease
from ._states import Phase
from .keeper import LeaseKeeper

_UNKNOWN_LEASE = 30.0
"""Seconds that are asked for when the job does not say how long its lease is."""


class Lease:
    """The lease of a job inside :func:`hold`."""

    __slots__ = ("_held", "_keeper")

    def __init__(self, keeper: LeaseKeeper, held: HeldLease) -> None:
        self._keeper = keeper
        self._held = held

    def __repr__(self) -> str:
        held = self._held
        state = f"lost: {held.lost}" if held.lost is not None else held.phase.name.lower()
        return f"<Lease of job {held.job_id}, attempt {held.attempt}, {state}>"

    @property
    def lost(self) -> str | None:
        """Why the lease is gone; ``None`` while it is not."""
        self._held.check(trio.current_time())
        return self._held.lost

    def remaining(self) -> float:
        """Seconds until the lease ends, 0 when it has."""
        return max(self._held.end - trio.current_time(), 0.0)

    async def ack(self) -> None:
        """Report the job as done; repeated until the lease ends.

        A checkpoint. A cancel ends the waiting, not the ack.

        Raises:
            LeaseError: the lease is lost, or the job was acked or nacked already.
            ClientError: the server cannot be reached, or refuses.
        """
        held = self._held
        await held.settle_and_wait(
            self._keeper.methods.ack,
            records.AckRequest(held.job_id, held.attempt, held.worker_id),
        )

    async def nack(
        self, directive: RetryDirective = RetryDirective.DEFAULT, reason: str = ""
    ) -> bool:
        """Report the job as failed; repeated until the lease ends.

        A checkpoint. A cancel ends the waiting, not the nack.

        Returns:
            Whether the job is dead-lettered (``False`` also if the answer got lost).

        Raises:
            LeaseError: the lease is lost, or the job was acked or nacked already.
            ClientError: the server cannot be reached, or refuses.
        """
        held = self._held
        request = convert.nack_request_to_wire(
            held.job_id,
            held.attempt,
            directive,
            self._keeper.clean_reason(reason),
            held.worker_id,
        )
        response = await held.settle_and_wait(self._keeper.methods.nack, request)
        return response is not None and bool(response.dead_lettered)

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
        return await self._held.extend(checked_seconds(duration, "duration"))


@asynccontextmanager
async def hold(
    keeper: LeaseKeeper,
    job: LeasedJob,
    *,
    auto_extend: bool = True,
    interval: Duration | None = None,
) -> AsyncIterator[Lease]:
    """Keep a job's lease while the body runs, and cancel the body when it is lost.

    A job that is held already (by its worker, or by another ``hold``) gives the same lease,
    and its first holder keeps it: when that one lets go without an ack or nack, the others are
    cancelled as if it were lost.

    Nothing is sent for a body that ends without ack or nack; its lease runs out. An ack that
    is on its way when the body ends is waited for, at most until the lease ends.

    Args:
        keeper: The client's.
        job: A job out of ``reserve``, or whatever has an id and an attempt.
        auto_extend: Extend the lease as long as the body runs.
        interval: Seconds between extends; a third of the granted lease if not set.

    Raises:
        LeaseLostError: the lease was lost, unless the body raised something of its own.
        TypeError, ValueError: an argument is wrong, ``interval`` not shorter than the lease,
            or ``lease_deadline`` or ``lease_duration`` of the job no time.
    """
    if not isinstance(auto_extend, bool):
        raise TypeError(f"auto_extend must be a bool, not {type(auto_extend).__name__}")
    now = trio.current_time()
    end = _end_of(job)
    left = _UNKNOWN_LEASE if end is None else end - now
    duration = getattr(job, "lease_duration", None)
    asked = (
        max(left, 0.001) if duration is None else checked_seconds(duration, "job.lease_duration")
    )
    if interval is not None:
        interval = checked_seconds(interval, "interval")
        if not auto_extend:
            raise ValueError("interval has no use with auto_extend=False")
        if interval >= asked:
            raise ValueError(f"interval must be shorter than the lease ({asked:.12g} s)")
    held = keeper.find(job)
    if held is not None:
        scope = held.join()
        try:
            with scope:
                yield Lease(keeper, held)
        finally:
            held.leave(scope)
        _raise_if_lost(held)
        if scope.cancelled_caught:
            raise LeaseLostError(LET_GO)
        return
    held = keeper.open(
        job.id,
        job.attempt,
        getattr(job, "worker_id", None),
        asked=asked,
        interval=interval,
    )
    held.end_at(now + left, min(asked, left), own=False)
    try:
        if end is None:
            await held.extend(asked)  # the only way to know how long it lasts
        if auto_extend:
            keeper.start_beats(held, now)
        if held.check(now) is None:
            assert held.scope is not None  # its end is set
            with held.scope:
                yield Lease(keeper, held)
    finally:
        if held.phase is Phase.SETTLING and held.settled is not None:
            with trio.CancelScope(deadline=held.end, shield=True):
                await held.settled.wait()
        held.check(trio.current_time())
        held.close()
    _raise_if_lost(held)


def _raise_if_lost(held: HeldLease) -> None:
    held.check(trio.current_time())  # whoever is first to leave sees it first
    if held.lost is not None and held.cancel_reason is not None:
        raise LeaseLostError(held.lost)


def _end_of(job: LeasedJob) -> float | None:
    """When the job's lease ends, as far as it says; ``hold`` believes what it is told."""
    end = getattr(job, "lease_deadline", None)
    if end is None:
        return None
    if isinstance(end, bool) or not isinstance(end, (int, float)):
        raise TypeError(f"job.lease_deadline must be a number, not {type(end).__name__}")
    if not isfinite(end):
        raise ValueError(f"job.lease_deadline must be finite, not {end}")
    return float(end)
