"""Jobs that came with a lease that may be over: they wait for the server's time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..lease import Answer, Timer
from ..wire import records

if TYPE_CHECKING:
    from ._run import Run


class _Job:
    """One of them."""

    def __init__(self, record: records.Job, raw: bytes, answer: Answer) -> None:
        self.record = record
        self.raw = raw
        self.answer = answer
        self.timer: Timer


class Unsure:
    """Holds them back: one that ran now might run on after its lease, and one that did not
    would be stranded until its end."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._jobs: dict[_Job, None] = {}

    def wait(self, record: records.Job, raw: bytes, answer: Answer) -> None:
        """Take in the job again when the server has told its time since ``answer`` came."""
        run = self._run
        job = _Job(record, raw, answer)
        self._jobs[job] = None
        run.slots.reports += 1  # so that the run goes on until it has come to an end
        _, asked, _, received = answer
        job.timer = Timer(partial(self._leave, job, "its time is up"))
        run.keeper.wheel.start(job.timer, received + asked)
        run.keeper.when_known(received, partial(self._known, job))

    def _known(self, job: _Job) -> None:
        if job in self._jobs:
            self._run.receive_again(job.raw, job.answer)
            self._forget(job)

    def _leave(self, job: _Job, why: str) -> None:
        self._run.reports.not_started(job.record, why)
        self._forget(job)

    def _forget(self, job: _Job) -> None:
        job.timer.stop()
        del self._jobs[job]
        self._run.slots.reported()
        self._run.signal.set()

    def give_up(self) -> None:
        """The run ends: nobody waits for the server's time any more."""
        for job in list(self._jobs):
            self._leave(job, "the server did not tell its time, its lease has to run out")
