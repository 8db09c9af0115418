"""One handler on a worker, watched: when it began and ended, how, and what became of its job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from sepp_trio.lease import HeldLease
from sepp_trio.types import DeadLetterCause, Payload
from sepp_trio.worker import Handler, JobCtx, Worker

from ._history import JobEvent
from ._limits import NO_LIMIT
from ._outcomes import Acked, DeadLettered, Extend, LeaseLost, Outcome, Retried
from ._proxy import THIEF, Happening
from ._recorder import Recorder
from ._standstill import limit_over
from ._stuck import break_shields, where

_LOOK_EVERY = 1.0
"""Seconds between two looks for new shields of a handler that has to end."""


class ObservedHandler:
    """The handler's first delivery of one job, from its lease to its report."""

    def __init__(self, handler: Handler, recorder: Recorder, job_id: str) -> None:
        self._handler = handler
        self._recorder = recorder
        self._job_id = job_id
        self._task: trio.lowlevel.Task | None = None
        self._lease: HeldLease | None = None
        self._attempt: int | None = None
        self._began = 0.0
        self._duration: float | None = None
        self._error: BaseException | None = None

    async def run_on(self, worker: Worker, limit: float) -> None:
        """Run the worker, which must have no handler yet, until the delivery is over.

        Raises:
            trio.TooSlowError: it is not over in time.
        """
        worker.catch_all(self._handler)
        entry = worker._registry.find("")
        assert entry is not None
        call = entry.call

        async def watched(payload: Payload | None, ctx: JobCtx) -> None:
            await self._call(call, worker, payload, ctx)

        entry.call = watched
        stuck: str | None = None
        watch = trio.CancelScope(shield=True)
        failure: BaseException | None = None

        async def end_in_time() -> None:
            nonlocal stuck
            with watch:  # shielded: a handler may as well outlast a cancel from outside
                stuck = f"after {await limit_over(limit)} {self._where()}"
                scope.cancel(reason="run_handler's limit is over")
                while True:
                    if self._task is not None and self._lease is not None:
                        assert self._lease.scope is not None
                        break_shields(self._task, self._lease.scope)
                    await trio.sleep(_LOOK_EVERY)

        async def stop_if_done() -> None:
            assert worker._run is not None  # it is, from the first step of run() on
            # One delivery is all that is wanted: a job that is lost would come again meanwhile.
            worker._run.slots.ahead = False
            await self._recorder.until(
                lambda _: self._recorder.job(self._job_id).is_done, limit=NO_LIMIT
            )
            if self._attempt is None:
                worker.shutdown()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_in_time)
            nursery.start_soon(stop_if_done)
            try:
                with trio.CancelScope() as scope:
                    await worker.run()
            except BaseException as error:
                failure = error  # raised below: the nursery would make a group of it
            nursery.cancel_scope.shield = True  # a second Cancelled would hide the failure
            nursery.cancel_scope.cancel(reason="the worker has ended")
            watch.cancel(reason="the worker has ended")
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # it refers to this frame, which refers to it
        if stuck is not None:
            raise trio.TooSlowError(stuck)

    async def _call(
        self,
        call: Callable[[Payload | None, JobCtx], Awaitable[None]],
        worker: Worker,
        payload: Payload | None,
        ctx: JobCtx,
    ) -> None:
        self._task = trio.lowlevel.current_task()
        self._lease = ctx._lease
        self._attempt = ctx.attempt
        self._began = trio.current_time()
        try:
            await call(payload, ctx)
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._duration = trio.current_time() - self._began
            self._task = None
            # Before the worker knows of the end: so it does not reserve the job again.
            worker.shutdown()

    def _where(self) -> str:
        name = getattr(self._handler, "__qualname__", repr(self._handler))
        if self._task is not None:
            return f"{name} has not ended; it is at {where(self._task)}"
        if self._attempt is None:
            return f"{name} has not begun: the job did not reach it"
        return f"{name} has ended, but the worker could not report it"

    # ---- what became of it ----

    def outcome(self, happened: tuple[Happening, ...] = ()) -> Outcome:
        """What became of the delivery, once :meth:`run_on` has returned."""
        job = self._recorder.job(self._job_id)
        lease = self._lease
        attempt = job.attempt if self._attempt is None else self._attempt
        events = [event for event in job.events if event.attempt == attempt]
        known: dict[str, Any] = {
            "attempt": attempt,
            "extends": tuple(map(_extend, _of(events, "extended"))),
            "error": self._error,
            "cancel_reason": None if lease is None else lease.cancel_reason,
            "duration": self._duration,
            "events": job.events,
            "happened": happened,
        }
        if _of(events, "acked"):
            return Acked(**known)
        nacks = _of(events, "nacked")
        if job.state == "dead letter" and job.attempt == attempt and (nacks or lease is None):
            reason = nacks[0].reason if nacks else None
            return DeadLettered(reason, cause=job.cause or DeadLetterCause.UNSPECIFIED, **known)
        if nacks:
            return Retried(nacks[0].seconds or 0.0, nacks[0].reason, **known)
        lost = None if lease is None else lease.lost
        return LeaseLost(lost or "it ended before the worker's report was answered", **known)


def _of(events: list[JobEvent], kind: str) -> list[JobEvent]:
    """Those of a kind, by the holder of the lease."""
    return [event for event in events if event.kind == kind and event.worker_id != THIEF]


def _extend(event: JobEvent) -> Extend:
    assert event.asked is not None
    assert event.until is not None
    return Extend(event.at, event.asked, event.until)
