"""How a run comes to its end: drain, grace, force."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

import trio

from ..lease import Timer
from ._log import logger

if TYPE_CHECKING:
    from ._run import Run

GRACE_OVER: Final = "shutdown grace over"


class Stop:
    """First no new jobs; then, if it takes too long, no handlers."""

    RELEASE: Final = 3.0
    """Seconds that a forced stop goes on without a handler that ends or a report that is
    answered, before it gives up the reports that are left."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.draining = trio.Event()
        self.forced: str | None = None
        """Why the handlers are cancelled, if they are."""
        self._deadline = inf
        self._settled_then = 0
        self._grace_timer = Timer(lambda: self.force(GRACE_OVER))
        self._give_up_timer = Timer(self._give_up)

    def drain(self, grace: float | None = None) -> None:
        """Reserve no more; after ``grace`` seconds cancel the handlers. Only ever tightens."""
        run = self._run
        if not self.draining.is_set():
            self.draining.set()
            logger.info("draining: %d jobs in flight", len(run.jobs))
            run.poller.stop_waiting()
            if grace is None:
                grace = run.options.shutdown_grace
        if grace is None or self.forced is not None:
            return
        deadline = trio.current_time() + grace
        if grace == 0:
            self.force(GRACE_OVER)
        elif deadline < self._deadline:
            self._deadline = deadline
            run.keeper.wheel.start(self._grace_timer, deadline)

    def force(self, reason: str) -> None:
        """Cancel the handlers; each job is given back when its handler has ended."""
        run = self._run
        if self.forced is not None:
            return
        self.forced = reason
        self.draining.set()
        self._grace_timer.stop()
        if run.jobs:
            logger.warning("%s: %d jobs are cancelled and given back", reason, len(run.jobs))
        now = trio.current_time()
        for job in list(run.jobs):
            if job.started_at is None:
                run.slots.withdraw(job)
                del run.jobs[job]
                if job.lease.check(now) is None:
                    run.reports.give_back(job, reason)
                else:
                    run.reports.over_before_start(job.record, job.lease)
            else:
                job.lease.cancel(reason)
        run.poller.force()
        self._settled_then = run.reports.settled
        run.keeper.wheel.start(self._give_up_timer, now + self.RELEASE)

    def _give_up(self) -> None:
        run = self._run
        if run.jobs or run.reports.settled > self._settled_then:
            self._settled_then = run.reports.settled
            run.keeper.wheel.start(self._give_up_timer, trio.current_time() + self.RELEASE)
        else:
            run.reports.give_up()

    def close(self) -> None:
        """The run is over: no timer rings any more."""
        self._grace_timer.stop()
        self._give_up_timer.stop()
