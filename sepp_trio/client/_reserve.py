"""Reserving: how long to wait, and what to make of the answer."""

from __future__ import annotations

import functools
import logging
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

import trio

from ..transport import CallError
from ..types import Job, ReserveOptions, RetryDirective
from ..types._checks import seconds
from ..wire import convert, records
from ._reason import clean_reason
from ._taking import take

if TYPE_CHECKING:
    from ..lease import LeaseKeeper
    from ._client import SeppClient

logger = logging.getLogger("sepp_trio")

ANSWER_TIME = 10.0
"""Seconds after the wait within which a reserve must be answered."""

SETTLE = 0.5
"""Seconds from its start during which a cancelled reserve is not reset: it may be claiming."""

_MARGIN = 1.0
"""Seconds before the caller's deadline at which the wait ends, if half the time is not less."""

_LOOK_AGAIN = 1.0
"""Seconds between two questions for the server's time, where its leases are odd."""

_PATIENCE = 1.0
"""Seconds to wait for the server's time, where jobs of an answer may be over already."""

_REFUSE_TIMEOUT = 5.0


def wait_within(wait: float, deadline: float, now: float) -> float:
    """Seconds to wait so that the answer is there before the caller's deadline.

    A reserve that is reset may have claimed jobs, which then are stranded.
    """
    left = deadline - now
    return max(0.0, min(wait, left - min(_MARGIN, left / 2)))


async def reserve(client: SeppClient, options: ReserveOptions) -> list[Job]:
    """See :meth:`SeppClient.reserve`.

    Raises:
        CallError: the call failed.
    """
    keeper = client._keeper
    asked = seconds(options.lease_duration, "lease_duration")
    sent = trio.current_time()
    keeper.freshen(sent, asked)  # answered before any wait is, and nobody waits for it
    wait = wait_within(
        seconds(options.wait_timeout, "wait_timeout", zero=True),
        trio.current_effective_deadline(),
        sent,
    )
    response = await take(
        client._channel,
        client._methods.reserve,
        convert.reserve_options_to_wire(replace(options, wait_timeout=wait)),
        timeout=wait + ANSWER_TIME,
        brings=lambda response: bool(response.jobs),
        settle=SETTLE,
        parks=True,
    )
    received = trio.current_time()
    clock = keeper.clock
    unsure = False

    @functools.cache  # jobs of one answer were leased in one moment
    def deadline_of(lease_expires_at: datetime) -> float:
        nonlocal unsure
        grant = clock.grant(lease_expires_at.timestamp(), asked, sent, received)
        if not grant.certain:
            unsure = unsure or grant.end <= received
            if received - clock.looked_at > _LOOK_AGAIN:
                keeper.ask_time()
        return grant.end

    def end_of(job: Job) -> float:
        expires_at = job.lease_expires_at.timestamp()
        return clock.reread_unheld(expires_at, asked, sent, received).end

    jobs = []
    for raw in response.jobs:
        job = convert.job_from_wire(
            raw,
            worker_id=options.worker_id,
            lease_duration=asked,
            deadline_of=deadline_of,
        )
        if isinstance(job, Job):
            jobs.append(job)
        else:
            refuse(client, job, options.worker_id)
    if unsure:
        # What may be over already may as well have begun just now.
        await _learn_time(keeper, received)
        jobs = [replace(job, lease_deadline=end_of(job)) for job in jobs]
    return jobs


async def _learn_time(keeper: LeaseKeeper, since: float) -> None:
    """Wait until the server has told its time, if it soon does.

    No checkpoint that is cancelled: the jobs are leased, and would be stranded.
    """
    known = trio.Event()
    keeper.when_known(since, known.set)
    with trio.CancelScope(deadline=since + _PATIENCE, shield=True):
        await known.wait()


def refuse(client: SeppClient, job: convert.MalformedJob, worker_id: str | None) -> None:
    """Give up a job that cannot be read, so that it does not come back at each lease's end.

    Nothing is waited for: the nack ends in the channel, within its own deadline, and what
    becomes of it is logged.
    """
    if not job.can_be_nacked:
        logger.error("reserved a job that cannot be read, nor given up: %s", job.reason)
        return
    logger.error("reserved job %s cannot be read, giving it up: %s", job.job_id, job.reason)

    def log_failure(_: records.NackResponse | None, error: CallError | None) -> None:
        if error is not None:
            logger.warning("job %s could not be given up: %s", job.job_id, error)

    reason = clean_reason(f"the client cannot read the job: {job.reason}")
    request = convert.nack_request_to_wire(
        job.job_id, job.attempt, RetryDirective.DEAD_LETTER, reason, worker_id
    )
    client._channel.start_unary(
        client._methods.nack, request, log_failure, timeout=_REFUSE_TIMEOUT, urgent=True
    )
