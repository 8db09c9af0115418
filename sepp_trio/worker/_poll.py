"""The reserve loop: one reserve at a time, and what to do about each kind of answer."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio
from grpclib.const import Status

from ..client._reserve import ANSWER_TIME, wait_within
from ..client._status import client_error, reserve_error
from ..errors import ClientClosedError, SeppError
from ..lease import Timer
from ..transport import CallError, ChannelClosed, PendingCall
from ..wire import convert, records
from ._log import logger

if TYPE_CHECKING:
    from ._run import Run

_EARLY = 0.1
"""Seconds; an empty answer that comes sooner did not wait for a job."""

_EARLY_PAUSE = 0.25
_LATE = 8
"""Beats that are late by such a part of a lease are signs of too much work."""

_LATE_PAUSE = 0.25
_LONGEST_PAUSE = 16.0
_RESET_AFTER = 0.5
"""Seconds after a forced stop; a reserve that is reset while it claims strands its jobs."""

_CROSSING = 0.25
"""Seconds after the reset in which an answer that crosses it is taken."""

_INFO_TIMEOUT = 10.0
_JOB_OVERHEAD = 4096
"""Bytes of a job besides payload and custom values, at most."""

_FATAL = frozenset(
    (
        Status.UNAUTHENTICATED,
        Status.PERMISSION_DENIED,
        Status.UNIMPLEMENTED,
        Status.INVALID_ARGUMENT,
        Status.FAILED_PRECONDITION,
    )
)


class FatalError(Exception):
    """What the server answered does not heal by itself; ``error`` is for the user."""

    def __init__(self, error: SeppError) -> None:
        super().__init__(error)
        self.error = error


class Poller:
    """Reserves for one run of a worker."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.pending: PendingCall | None = None
        """The reserve that is unanswered: it may bring jobs yet."""
        self._error: CallError | None = None
        self._came_early = False
        self._waits = False
        """The loop waits for room, and for nothing else."""
        self._asked = 0
        self._sent = 0.0
        self._wait = 0.0
        self._failures = 0
        self._succeeded = False
        self._most = 2**32 - 1
        """What one answer can hold, and the server gives at once."""
        self._reset_timer = Timer(self._reset)
        self._drop_timer = Timer(self._drop)
        self._only_waiting: trio.CancelScope | None = None

    # ---- the loop ----

    async def start(self) -> None:
        """Ask the server for its time and limits, however long it takes to find it.

        Raises:
            FatalError: the server will not have us.
        """
        run = self._run
        while not run.stop.draining.is_set():
            sent = trio.current_time()
            try:
                with trio.CancelScope() as self._only_waiting:
                    response = await run.channel.unary(
                        run.methods.get_server_info,
                        records.GetServerInfoRequest(),
                        timeout=_INFO_TIMEOUT,
                    )
                    run.keeper.take_server_info(response, sent, trio.current_time())
                    self._learn_limits(response)
                    return
            except CallError as error:
                if error.origin == "server" and error.status in _FATAL:
                    raise FatalError(client_error(error)) from error
                await self._after_error(error, "GetServerInfo")

    def _learn_limits(self, info: records.GetServerInfoResponse) -> None:
        self._failures = 0
        largest_job = info.max_payload_bytes + info.max_custom_total_bytes + _JOB_OVERHEAD
        self._most = max(1, self._run.channel.max_receive_message_bytes // largest_job)
        if info.max_reserve_batch:
            self._most = min(self._most, info.max_reserve_batch)
        longest = convert.seconds_from_wire(info.max_lease_duration)
        asked = self._run.options.lease_duration
        if 0 < longest < asked:
            logger.warning(
                "the server grants leases of %.12g s, not the %.12g s asked", longest, asked
            )

    async def loop(self, task_status: trio.TaskStatus[None]) -> None:
        """Reserve until the worker drains and the last reserve is answered.

        Raises:
            FatalError: the server will not have us.
        """
        run = self._run
        started = False
        while not run.stop.draining.is_set():
            wanted = self._wanted()
            if wanted > 0 and self._beats_are_late():
                await self._pause(_LATE_PAUSE)
                continue
            if wanted > 0:
                self._send(wanted)
                if not started:
                    started = True
                    task_status.started()
            self._waits = True
            await self._settled()
            self._waits = False
            if self._error is not None:
                error, self._error = self._error, None
                await self._after_error(error, "Reserve")
            elif self._came_early:
                self._came_early = False
                await self._pause(_EARLY_PAUSE)
        if not started:
            task_status.started()
        await self._settled(only_pending=True)

    def _wanted(self) -> int:
        run = self._run
        return min(run.slots.wanted(), run.options.max_jobs or self._most, self._most)

    def ask(self) -> None:
        """The last job has ended and no reserve is pending: reserve now, if the loop would.

        Its task is one of the worker's nursery, so it has the deadline of ``Worker.run``.
        """
        if not self._waits or self._run.stop.draining.is_set() or self._beats_are_late():
            self._run.signal.set()
            return
        wanted = self._wanted()
        if wanted > 0:
            try:
                self._send(wanted)
            except ClientClosedError:
                self._run.signal.set()  # the loop will find out as well

    def _beats_are_late(self) -> bool:
        """Whether there is more to do than time: with more leases to keep, all would be lost."""
        options = self._run.options
        if not options.auto_extend:
            return False
        return self._run.keeper.wheel.behind() > options.lease_duration / _LATE

    async def _settled(self, *, only_pending: bool = False) -> None:
        """Wait for the answer of the pending reserve, or else for a reason to send one."""
        run = self._run
        if self.pending is None and not only_pending:
            await run.signal.wait()
        while self.pending is not None:
            await run.signal.wait()
            run.leave_if_told()
        run.leave_if_told()

    # ---- one reserve ----

    def _send(self, wanted: int) -> None:
        run = self._run
        options = run.options
        self._sent = trio.current_time()
        self._wait = wait_within(
            options.wait_timeout, trio.current_effective_deadline(), self._sent
        )
        self._asked = wanted
        run.keeper.freshen(self._sent, options.lease_duration)
        request = records.ReserveRequest(
            queues=list(options.queues),
            wait_timeout=convert.seconds_to_wire(self._wait),
            lease_duration=convert.seconds_to_wire(options.lease_duration),
            worker_id=options.worker_id,
            max_jobs=wanted,
        )
        try:
            self.pending = run.channel.start_unary(
                run.methods.reserve,
                request,
                self._answered,
                timeout=self._wait + ANSWER_TIME,
                long_poll=True,
            )
        except ChannelClosed:
            raise run.closed_error() from None
        run.counters.reserves += 1

    def _answered(self, response: records.ReserveResponse | None, error: CallError | None) -> None:
        # In the channel's reader: jobs start here, which saves a turn of the scheduler.
        run = self._run
        self.pending = None
        self._error = error
        now = trio.current_time()
        if response is not None:
            self._failures = 0
            self._succeeded = True
            good = run.receive(response.jobs, self._sent, now)
            run.slots.answered(self._asked, len(response.jobs))
            if not good:
                run.counters.reserves_empty += 1
                if now - self._sent < min(_EARLY, self._wait / 2):
                    self._came_early = True
                    self._waits = False
            run.reports.reserve_settled()
            if run.starting and self._waits and not run.stop.draining.is_set():
                # The jobs that have just come start in the next turn of the scheduler. The loop
                # shall not run among them: it would hold them up, and reserve for those few that
                # are done by then.
                return
        else:
            run.counters.reserves_failed += 1
            self._waits = False
            run.reports.reserve_settled()
        run.signal.set()

    # ---- stopping ----

    def stop_waiting(self) -> None:
        """End a pause or a wait for the connection: the worker drains."""
        if self._only_waiting is not None:
            self._only_waiting.cancel(reason="the worker drains")
        self._run.signal.set()

    def force(self) -> None:
        """Reset the pending reserve, after the half second in which it may be claiming."""
        self.stop_waiting()
        if self.pending is not None:
            self._run.keeper.wheel.start(self._reset_timer, trio.current_time() + _RESET_AFTER)

    def _reset(self) -> None:
        if self.pending is not None:
            self.pending.reset()
            self._run.keeper.wheel.start(self._drop_timer, trio.current_time() + _CROSSING)

    def _drop(self) -> None:
        if self.pending is not None:
            self.pending.cancel()
            self.pending = None
            self._run.reports.reserve_settled()
            self._run.signal.set()

    # ---- what went wrong ----

    async def _after_error(self, error: CallError, call: str) -> None:
        """Do what a failed call needs before the next one.

        Raises:
            FatalError: it does not heal by itself.
            ClientClosedError: the client's block has ended.
        """
        run = self._run
        if isinstance(error, ChannelClosed):
            raise run.closed_error()
        if run.stop.draining.is_set():
            return
        self._failures += 1
        if error.origin == "connection":
            logger.warning("connection lost, waiting for the server: %s", error)
            if self._failures > 1:
                await self._pause(0.05 * 2 ** min(self._failures, 4))
            await self._wait_for(run.channel.wait_ready)
            run.keeper.ask_time()  # it may be another server by now
            return
        if (
            error.origin == "local"
            and error.status is Status.RESOURCE_EXHAUSTED
            and self._asked > 1
        ):
            self._most = max(1, self._asked // 2)
            logger.warning(
                "an answer with up to %d jobs was over the receive limit, their leases have to"
                " run out; from now on at most %d are asked for (a larger"
                " max_receive_message_bytes helps): %s",
                self._asked,
                self._most,
                error,
            )
            return
        level = logging.WARNING
        if error.origin == "server" and error.status in _FATAL:
            if not self._succeeded or run.options.on_fatal == "raise":
                raise FatalError(reserve_error(error)) from error
            level = logging.ERROR
        pause = run.options.reserve_error_backoff * 2 ** min(self._failures - 1, 10)
        pause = min(pause, max(_LONGEST_PAUSE, run.options.reserve_error_backoff))
        logger.log(level, "%s failed, again in %.3g s: %s", call, pause, error)
        await self._pause(pause)

    async def _pause(self, seconds: float) -> None:
        # Jittered, so that a fleet that failed together does not come back together.
        await self._wait_for(trio.sleep, seconds * (0.5 + random.random() / 2))

    async def _wait_for(self, wait: Callable[..., Awaitable[None]], *args: float) -> None:
        if not self._run.stop.draining.is_set():
            with trio.CancelScope() as self._only_waiting:
                await wait(*args)
