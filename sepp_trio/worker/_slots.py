"""Slots: which job runs, which waits, how many to reserve. Pure bookkeeping.

A job that was received waits for a slot (reserved ahead, or more than was asked for), then for
the limit of its type, which it does with its slot, then runs. Its report holds no slot, but
running and reporting jobs together are at most twice the slots.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from .job import RunningJob
from .registry import Entry

_SHORT: Final = 0.1
"""Seconds; jobs are reserved ahead only if handlers take less on average."""

_WEIGHT = 0.1
"""Of the latest handler in the average."""


class Slots:
    """Decides when a job starts.

    Args:
        limit: How many jobs run at once.
        ahead: Whether jobs may be reserved before there is a slot for them.
        start: Called with each job that is to run now, and the time; says whether it does (its
            lease may be over, and then it is done with).
        room: Called when there may be more to reserve, except by ``ended``.
    """

    def __init__(
        self,
        limit: int,
        *,
        ahead: bool,
        start: Callable[[RunningJob, float], bool],
        room: Callable[[], None],
    ) -> None:
        self.limit = limit
        self.ahead = ahead
        self.running = 0
        self.reports = 0
        """Reports on their way; whoever sends one counts it here."""
        self.waiting: deque[RunningJob] = deque()
        self._start = start
        self._room = room
        self._duration = 0.0
        self._full = False

    @property
    def idle(self) -> bool:
        """Whether no job is here in any state."""
        return not (self.running or self.waiting or self.reports)

    @property
    def held(self) -> int:
        """Jobs that have not ended."""
        return self.running + len(self.waiting)

    def set_limit(self, limit: int) -> None:
        """Change the number of slots; running jobs are left alone."""
        self.limit = limit
        self._fill(trio.current_time())
        self._room()

    def wanted(self) -> int:
        """How many jobs to reserve now, 0 for none."""
        held = self.held
        reporting = 2 * self.limit - held - self.reports
        free = min(self.limit - held, reporting)
        if self.ahead and self._full and self._duration < _SHORT:
            # Jobs for between half and all of the slots are kept ready.
            spare = min(2 * self.limit - held, reporting + self.limit)
            if free > 0 or spare > self.limit // 2:
                return max(spare, 0)
        return max(free, 0)

    def answered(self, asked: int, got: int) -> None:
        """A reserve brought ``got`` of ``asked`` jobs: more are waiting if that was all."""
        self._full = got >= asked

    def admit(self, job: RunningJob, now: float) -> None:
        """Take in a job: it starts now or waits."""
        running, limit, entry = self.running, self.limit, job.entry
        if (
            running < limit
            and entry.running < entry.max_in_flight
            and running + self.reports < 2 * limit
            and not self.waiting
        ):
            # As in _take_slot, because most jobs come this way.
            if self._start(job, now):
                self.running += 1
                entry.running += 1
        elif not self.waiting and self._may_start():
            self._take_slot(job, now)
        else:
            self.waiting.append(job)

    def ended(self, entry: Entry, duration: float, now: float) -> None:
        """A job's handler has ended: its slot is free."""
        self._duration += _WEIGHT * (duration - self._duration)
        entry.running -= 1
        while entry.waiting and entry.running < entry.max_in_flight:
            self._run(entry.waiting.popleft(), now)
        self.running -= 1
        if self.waiting:
            self._fill(now)

    def reported(self) -> None:
        """A report is settled."""
        self.reports -= 1
        if self.waiting:
            self._fill(trio.current_time())
        self._room()

    def withdraw(self, job: RunningJob) -> None:
        """Take out a job that has not started."""
        if job in job.entry.waiting:
            job.entry.waiting.remove(job)
            self.running -= 1
        else:
            self.waiting.remove(job)

    def _may_start(self) -> bool:
        return self.running < self.limit and self.running + self.reports < 2 * self.limit

    def _fill(self, now: float) -> None:
        while self.waiting and self._may_start():
            self._take_slot(self.waiting.popleft(), now)

    def _take_slot(self, job: RunningJob, now: float) -> None:
        self.running += 1
        entry = job.entry
        if entry.running < entry.max_in_flight:
            self._run(job, now)
        else:
            entry.waiting.append(job)

    def _run(self, job: RunningJob, now: float) -> None:
        if self._start(job, now):
            job.entry.running += 1
        else:
            self.running -= 1
