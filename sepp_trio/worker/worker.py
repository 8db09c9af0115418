"""``Worker``: options, handlers, and the way in and out of a run."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence

import trio

from ..client import SeppClient
from ..types import Duration
from ..types._checks import integer, seconds
from ._options import OnFatal, checked_options
from ._run import Run
from ._statistics import Counters, State, WorkerStatistics
from .registry import H, Handler, Registry


class Worker:
    """Reserves jobs and runs their handlers.

    Any number of workers may share a client and a nursery. Register handlers, then let
    :meth:`run` run.

    Args:
        client: What the server is spoken to with; its block must outlast the run.
        queues: Polled strictly in this order.
        lease_duration: Seconds of lease for each job; the server may grant less. A handler
            is cancelled shortly before its lease ends.
        wait_timeout: Seconds that a reserve waits for a job. A stop lets the last one end,
            so an idle worker takes up to so long to stop.
        max_jobs: Jobs to reserve at once, at most; as many as there are free slots if not set.
        max_in_flight: Slots: handlers that run at once.
        auto_extend: Extend the leases of jobs as long as their handlers run, and reserve
            ahead while handlers are short and jobs many.
        auto_extend_interval: Seconds between extends; turns ``auto_extend`` on. A third of
            the granted lease if not set.
        reserve_error_backoff: Seconds to pause after the first failed reserve; doubled for
            each further one up to 16, and jittered.
        worker_id: Shows in the server's traces; host, process id and a random part if not set.
        handler_timeout: Seconds for each handler, unless its type has a limit of its own.
        shutdown_grace: Seconds from the shutdown until handlers are cancelled; no limit
            if not set.
        on_fatal: What to do when the server refuses for good (key, queue, request) after
            the first reserve has succeeded: log and retry, or drain and raise. Before
            that it is raised always.

    Raises:
        TypeError, ValueError: naming the option and its limit.
    """

    def __init__(
        self,
        client: SeppClient,
        queues: Sequence[str],
        lease_duration: Duration,
        *,
        wait_timeout: Duration = 5.0,
        max_jobs: int | None = None,
        max_in_flight: int = 16,
        auto_extend: bool = False,
        auto_extend_interval: Duration | None = None,
        reserve_error_backoff: Duration = 1.0,
        worker_id: str | None = None,
        handler_timeout: Duration | None = None,
        shutdown_grace: Duration | None = None,
        on_fatal: OnFatal = "retry",
    ) -> None:
        if not isinstance(client, SeppClient):
            raise TypeError(f"client must be a SeppClient, not {type(client).__name__}")
        self._client = client
        self._options = checked_options(
            queues,
            lease_duration,
            wait_timeout=wait_timeout,
            max_jobs=max_jobs,
            auto_extend=auto_extend,
            auto_extend_interval=auto_extend_interval,
            reserve_error_backoff=reserve_error_backoff,
            worker_id=worker_id,
            handler_timeout=handler_timeout,
            shutdown_grace=shutdown_grace,
            on_fatal=on_fatal,
        )
        self._limit = integer(max_in_flight, "max_in_flight", 1)
        self._registry = Registry()
        self._run: Run | None = None
        self._ended = False
        # What shutdown, which may come from any thread, shares with run.
        self._lock = threading.RLock()  # a signal may come while it is held
        self._token: trio.lowlevel.TrioToken | None = None
        self._asked: list[float | None] = []

    # ---- handlers ----

    def handle(
        self,
        job_type: str,
        handler: Handler,
        *,
        timeout: Duration | None = None,
        max_in_flight: int | None = None,
    ) -> None:
        """Let ``handler(payload, ctx)`` handle a job type.

        An async function runs in the job's task, a plain one in a thread of its own; a cancel
        reaches the latter at ``trio.from_thread.check_cancelled()``. To return is to ack; to
        raise ``HandlerError`` says what becomes of the job; any other exception lets it be
        delivered again by the queue's retry policy.

        Args:
            timeout: Seconds for each job, instead of the worker's ``handler_timeout``.
            max_in_flight: How many jobs of this type run at once; others wait in their slots.

        Raises:
            DuplicateHandlerError: the type has a handler.
            TypeError, ValueError: the handler or a limit cannot be used; says why.
        """
        self._registry.add(
            job_type, handler, timeout=timeout, max_in_flight=max_in_flight, replace=False
        )

    def handler(
        self,
        job_type: str,
        *,
        timeout: Duration | None = None,
        max_in_flight: int | None = None,
    ) -> Callable[[H], H]:
        """:meth:`handle` as a decorator."""

        def register(handler: H) -> H:
            self.handle(job_type, handler, timeout=timeout, max_in_flight=max_in_flight)
            return handler

        return register

    def replace_handler(
        self,
        job_type: str,
        handler: Handler,
        *,
        timeout: Duration | None = None,
        max_in_flight: int | None = None,
    ) -> None:
        """:meth:`handle`, whether the type has a handler or not. Jobs that are here already,
        running or waiting, keep the one that they have."""
        self._registry.add(
            job_type, handler, timeout=timeout, max_in_flight=max_in_flight, replace=True
        )

    def remove_handler(self, job_type: str) -> bool:
        """Forget a type's handler; whether there was one. Jobs that are here already keep it."""
        return self._registry.remove(job_type)

    def catch_all(
        self,
        handler: H,
        *,
        timeout: Duration | None = None,
        max_in_flight: int | None = None,
    ) -> H:
        """Let ``handler`` handle all types that have none; also a decorator."""
        self._registry.set_catch_all(handler, timeout=timeout, max_in_flight=max_in_flight)
        return handler

    # ---- running ----

    @property
    def worker_id(self) -> str:
        """The id that the server sees."""
        return self._options.worker_id

    @property
    def max_in_flight(self) -> int:
        """Slots; may be set while the worker runs. Jobs that run are left alone."""
        return self._limit

    @max_in_flight.setter
    def max_in_flight(self, value: int) -> None:
        self._limit = integer(value, "max_in_flight", 1)
        if self._run is not None:
            self._run.slots.set_limit(value)

    # Ctrl-C in a program without run_until_signal interrupts handlers, and what else the program
    # does, but neither the worker's nor the channel's books: it comes at a wait of theirs instead.
    @trio.lowlevel.enable_ki_protection
    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Work until :meth:`shutdown`, then until the jobs in flight are done and reported.

        ``nursery.start(worker.run)`` returns once it polls. A server that cannot be reached
        is waited for.

        A cancel stops the worker: handlers are cancelled, jobs given back for immediate
        redelivery when their handlers have ended, the pending reserve is reset after half
        a second. When the last handler has ended, that takes at most 3 s more than the
        server takes to answer.

        Raises:
            UnauthenticatedError, UnknownQueuesError, …: the server refuses the worker; see
                ``on_fatal``.
            ClientClosedError: the client's block ended before the worker.
            RuntimeError: no handler is registered, or ``run`` was called before.
            SystemExit, KeyboardInterrupt: a handler raised it; the other jobs were given back.
        """
        if self._run is not None or self._ended:
            raise RuntimeError("a worker runs once: make another Worker")
        if not self._registry:
            raise RuntimeError("the worker has no handler: register one before run()")
        self._client._check_open()
        run = self._run = Run(self._client, self._options, self._registry, self._limit)
        with self._lock:
            self._token = trio.lowlevel.current_trio_token()
            asked, self._asked = self._asked, []
        for grace in asked:
            run.stop.drain(grace)
        try:
            await run.run(task_status)
        finally:
            run.stop.close()
            with self._lock:
                self._token = None
                self._ended = True

    def shutdown(self, grace: Duration | None = None) -> None:
        """Let the worker drain: reserve no more, finish and report what is in flight.

        After ``grace`` seconds (``shutdown_grace`` if not given) handlers are cancelled and
        their jobs given back once they have ended; 0 cancels at once. Another call can
        only shorten the grace. Not a checkpoint. For other threads and signal handlers
        there is :meth:`shutdown_handle`, which does the same.
        """
        self._shut_down(_checked_grace(grace), soon=False)

    def shutdown_handle(self) -> ShutdownHandle:
        """What can shut the worker down from any thread and from signal handlers."""
        return ShutdownHandle(self)

    def _shut_down(self, grace: float | None, *, soon: bool) -> None:
        with self._lock:
            if self._ended:
                return
            token = self._token
            self._asked.append(grace)
        if token is None:
            return  # run() will see it
        # A signal handler seems to be in the run as well, but must not touch it.
        if not soon and trio.lowlevel.in_trio_run() and trio.lowlevel.current_trio_token() is token:
            self._drain()
        else:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(self._drain)

    def _drain(self) -> None:
        with self._lock:
            asked, self._asked = self._asked, []
        if self._run is not None and not self._ended:
            for grace in asked:
                self._run.stop.drain(grace)

    @property
    def _drained(self) -> bool:
        """Whether the run has ended with every job finished."""
        return self._ended and self._run is not None and self._run.stop.forced is None

    @property
    def _stop_asked(self) -> bool:
        with self._lock:
            return (
                bool(self._asked)
                or self._ended
                or (self._run is not None and self._run.stop.draining.is_set())
            )

    def statistics(self) -> WorkerStatistics:
        """Where the worker stands, and what it has done so far. Not a checkpoint; usable from
        any thread."""
        run = self._run
        counters = Counters() if run is None else run.counters
        # Jobs may come and go meanwhile: a thread may ask.
        since = [] if run is None else [job.lease.cancelled_at for job in list(run.overdue)]
        return WorkerStatistics(
            state=self._state(),
            max_in_flight=self._limit,
            in_flight=0 if run is None else run.slots.running,
            waiting=0 if run is None else len(run.slots.waiting),
            reporting=0 if run is None else run.slots.reports,
            overdue=len(since),
            oldest_overdue=run.clock.current_time() - min(since) if run and since else 0.0,
            extends=0 if run is None else run.beats.sent,
            extends_failed=0 if run is None else run.beats.failed,
            **{name: getattr(counters, name) for name in Counters.__slots__},
        )

    def _state(self) -> State:
        if self._ended:
            return "stopped"
        if self._run is None:
            return "new"
        if self._run.stop.forced is not None:
            return "stopping"
        return "draining" if self._run.stop.draining.is_set() else "running"


def _checked_grace(grace: Duration | None) -> float | None:
    return None if grace is None else seconds(grace, "grace", zero=True)


class ShutdownHandle:
    """Shuts a worker down; usable from any thread and in signal handlers, before, during and
    after its run."""

    __slots__ = ("_worker",)

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def shutdown(self, grace: Duration | None = None) -> None:
        """See :meth:`Worker.shutdown`; the worker hears of it in its next turn."""
        self._worker._shut_down(_checked_grace(grace), soon=True)

    @property
    def is_shutdown(self) -> bool:
        """Whether the worker was told to stop, or has stopped."""
        return self._worker._stop_asked
