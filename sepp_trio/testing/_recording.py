"""``open_recording_broker``: the embedded server, with the history of every job."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from sepp_trio.broker import Broker, BrokerConfig
from sepp_trio.broker.broker import Parts, _parts, _running
from sepp_trio.broker.committer import Committer
from sepp_trio.broker.engine import Engine
from sepp_trio.errors import JobNotFoundError
from sepp_trio.types import Duration, LeasedJob

from ._history import JobHistory, Jobs
from ._in_trio import check_in_trio
from ._recorder import Recorder, key_of
from ._threads import clock_waits_for_threads


class RecordingBroker(Broker):
    """A broker that forgets no job; made by :func:`open_recording_broker`."""

    def __init__(self, parts: Parts, recorder: Recorder) -> None:
        super().__init__(parts.config, parts.store, parts.committer, parts.service)
        self._engine = parts.engine
        self._recorder = recorder

    def jobs(self, queue: str | None = None, *, job_type: str | None = None) -> Jobs:
        """All jobs so far, or those of a queue or type, as they are now."""
        return self._recorder.jobs(queue, job_type=job_type)

    def job(self, job_id: str) -> JobHistory:
        """The job with this id.

        Raises:
            KeyError: there was none.
        """
        return self._recorder.job(job_id)

    async def settled(self, queue: str | None = None, *, limit: Duration | None = None) -> None:
        """Wait until no job is scheduled, ready or leased: all were acked or given up; at most
        ``limit`` seconds on Trio's clock. Without it an hour on a ``MockClock``, else a minute.

        A checkpoint. Jobs that come later are no concern of it.

        Raises:
            trio.TooSlowError: the limit is over; tells the story of each job that is open.
        """
        await self._recorder.settled(queue, limit=limit)

    async def until(
        self,
        predicate: Callable[[Jobs], object],
        queue: str | None = None,
        *,
        limit: Duration | None = None,
    ) -> Jobs:
        """Wait until the predicate holds for the jobs; it is asked at once and after every
        commit. Returns these jobs.

        A checkpoint. The ``limit`` is as for :meth:`settled`.

        Raises:
            TypeError: the predicate is async, or has said nothing (``None``).
            trio.TooSlowError: the limit is over; tells the story of each job.
        """
        return await self._recorder.until(predicate, queue, limit=limit)

    async def lose_lease(self, job: LeasedJob) -> None:
        """Let the lease of a job (its ``id`` and ``attempt``) run out now: the attempt is used
        up, the job ready again or a dead letter. Its holder is told nothing.

        A checkpoint.

        Raises:
            JobNotFoundError: nobody holds this attempt of this job.
        """
        await end_lease(self._committer, self._engine, job)

    async def _clear(self) -> None:
        """Forget all jobs, dead letters and idempotency keys. A checkpoint."""
        await self._committer.submit(lambda now: self._engine.clear())


@asynccontextmanager
async def open_recording_broker(
    path: str | os.PathLike[str] | None = None, *, config: BrokerConfig | None = None
) -> AsyncIterator[RecordingBroker]:
    """:func:`sepp_trio.open_broker`, with the history of every job, those that it finds in the
    file included. While it runs, a leaping clock waits for threads: see
    :func:`clock_waits_for_threads`.

    Raises:
        StoreError: the file cannot be used; says why.
        RuntimeError: this is no run of Trio.
    """
    check_in_trio("open_recording_broker")
    recorder = Recorder()
    with clock_waits_for_threads():
        async with _parts(path, config or BrokerConfig(), recorder.observe) as parts:
            # In the loop: what a test finds in a file is little.
            recorder.load(parts.store, parts.clock.now_ms(), parts.clock)
            broker = RecordingBroker(parts, recorder)
            async with _running(broker):
                yield broker


async def end_lease(committer: Committer, engine: Engine, job: LeasedJob) -> None:
    """See :meth:`RecordingBroker.lose_lease`."""
    if not (hasattr(job, "id") and hasattr(job, "attempt")):
        raise TypeError(f"job must have an id and an attempt, as a Job has, not {job!r}")
    job_id, attempt = key_of(job.id), job.attempt
    if not await committer.submit(lambda now: engine.end_lease(job_id, attempt, now)):
        raise JobNotFoundError(f"attempt {attempt} of job {job.id} is not leased")
