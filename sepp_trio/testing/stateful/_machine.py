"""``HandlerMachine``: rules that put handlers through everything that can go wrong."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any, ClassVar, Final, TypeVar

import trio
from hypothesis import strategies as st
from hypothesis.control import current_build_context, currently_in_test_context
from hypothesis.errors import InvalidArgument
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from sepp_trio.broker import BrokerConfig, LimitsConfig
from sepp_trio.client import SeppClient
from sepp_trio.types import EnqueueRequest, Payload
from sepp_trio.worker import Handler, Worker

from .._faults import BlackHole, CallFault
from .._history import Jobs
from .._quiet import quiet
from .._said import refuse_async
from ..strategies._plans import call_faults
from ._loop import SteppedLoop
from ._requests import Request, requests
from ._world import HowToStop, World, open_world

T = TypeVar("T")

_SECONDS: Final = (0.1, 1.0, 5.0, 12.0, 31.0, 90.0)
_SHORT: Final = (0.1, 1.0, 5.0, 40.0)
_AHEAD: Final = (0.5, 5.0, 60.0, 3600.0)
_BACK: Final = (-0.5, -5.0, -30.0)
_MOST_BACK: Final = 60.0
"""Seconds by which the server's clock is set back in a story: whatever waits for its time there
does so for that much longer, and has to be done in the end."""

_REQUESTS: Final = st.runner().flatmap(lambda machine: machine._requests())
_RULES: Final = (
    "enqueue",
    "enqueue_and_stop",
    "let_turns_pass",
    "let_time_pass",
    "lose_lease",
    "end_too_late",
    "next_call",
    "drop_connection",
    "black_hole",
    "restart_worker",
    "restart_server",
    "jump_server_clock",
    "settle",
)


class HandlerMachine(RuleBasedStateMachine):
    """Looks for a story in which handlers do what they must not.

    Hypothesis makes up the story out of jobs and of what goes wrong: leases are lost,
    connections drop, calls fail or lose their replies, worker and server are restarted, all at
    any point of a handler. A failing story is shrunk and printed as code, and kept in
    Hypothesis's database, as usual::

        class Charging(HandlerMachine):
            payloads = {"charge": payloads(values=st.integers(1, 3))}

            def __init__(self):
                super().__init__()
                self.bank = Bank()

            def handlers(self):
                return {"charge": Charge(self.bank)}

            @invariant()
            def nobody_pays_twice(self):
                assert max(Counter(self.bank.orders).values(), default=0) <= 1

        TestCharging = Charging.TestCase

    At the end the faults cease, and then all jobs must settle, the worker must stop when it is
    told to, and :meth:`check` must hold. An ``AssertionError`` in a handler fails the story at
    once; any other exception lets the server deliver the job again, as it does in earnest.

    Everything is real, in memory and on Trio's virtual clock, which stands still between the
    steps. Handlers may be plain functions; their threads run one after the other, and everything
    else waits for them. Other Trio runs cannot be started by a rule: see :meth:`run`.
    """

    payloads: ClassVar[Mapping[str, st.SearchStrategy[Payload | None]]] = {}
    """What is enqueued: for each job type its payloads."""

    queues: ClassVar[Sequence[str]] = ("jobs",)
    """What the worker polls; jobs are enqueued to any of them."""

    idempotency_keys: ClassVar[st.SearchStrategy[str | None]] = st.none() | st.sampled_from("ab")
    """Those of the jobs that are enqueued."""

    config: ClassVar[BrokerConfig] = BrokerConfig(limits=LimitsConfig(default_max_attempts=100))
    """The server's settings. By default jobs have as many attempts as a story can take."""

    settle_within: ClassVar[float] = 600.0
    """Seconds of virtual time in which all jobs must be done once nothing goes wrong any more,
    and the worker must stop when it is told to."""

    without: ClassVar[Sequence[str]] = ()
    """Names of rules that are not to be played."""

    def __init__(self) -> None:
        super().__init__()
        self._check_payloads()
        self._loop: SteppedLoop[World] | None = None
        self._outer = sys.exception()
        self._held = ExitStack()

    # ---- what users say ----

    def handlers(self) -> Mapping[str, Handler]:
        """The handlers of a new process, by job type. What must outlive the process belongs to
        the machine; what is made here is lost with it."""
        raise NotImplementedError(f"{type(self).__name__}.handlers must give the handlers")

    def worker(self, client: SeppClient) -> Worker:
        """The worker of a new process; by default one with 30 s of lease, which it extends, and
        :meth:`handlers`."""
        worker = Worker(
            client, self.queues, 30.0, auto_extend=True, wait_timeout=60.0, worker_id="worker"
        )
        handlers = self.handlers()
        name = f"{type(self).__name__}.handlers"
        refuse_async(handlers, name)
        if not isinstance(handlers, Mapping):
            raise TypeError(f"{name} must give a mapping, not {type(handlers).__name__}")
        for job_type, handler in handlers.items():
            worker.handle(job_type, handler)
        return worker

    def check(self, jobs: Jobs) -> None:
        """Assert what must hold when all jobs are done and the worker has stopped. By default:
        that none was given up."""
        assert not jobs.dead_letters, f"jobs were given up:\n{jobs.dead_letters}"

    # ---- what users can ask ----

    @property
    def jobs(self) -> Jobs:
        """All jobs so far, in the order in which they were enqueued."""
        return self._world.recorder.jobs()

    @property
    def client(self) -> SeppClient:
        """The client of the worker that runs, for handlers that talk to the server."""
        return self._world.program.client

    @property
    def now(self) -> float:
        """Trio's time."""
        return self._stepped.clock.current_time()

    def run(self, async_fn: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run an async function in the machine's own Trio run, for rules of your own; everything
        else goes on until it returns.

        Raises:
            trio.TooSlowError: it has not ended after ``settle_within`` seconds of virtual time.
        """
        try:
            return self._stepped.run(self.settle_within, async_fn, *args)
        finally:
            self._raise_failures()

    # ---- the rules: what goes wrong does so while there is work ----

    @rule(request=_REQUESTS)
    def enqueue(self, request: EnqueueRequest) -> None:
        """Somebody enqueues a job, and everything goes on until it waits for time to pass. A job
        with an idempotency key that was used already is the earlier one."""
        self.run(self._world.enqueue, request, None)

    @rule(request=_REQUESTS, turns=st.integers(0, 40))
    def enqueue_and_stop(self, request: EnqueueRequest, turns: int) -> None:
        """The same, but everything goes on for so many turns only: for what happens in the
        middle of handlers that do not wait. It takes about fifteen turns until one begins."""
        self.run(self._world.enqueue, request, turns)

    @rule(turns=st.integers(1, 40))
    def let_turns_pass(self, turns: int) -> None:
        """Every task goes on to its next checkpoint, so many times; no time passes."""
        self.run(self._world.let_turns_pass, turns)

    @rule(seconds=st.sampled_from(_SECONDS))
    def let_time_pass(self, seconds: float) -> None:
        """So much time passes."""
        self.run(trio.sleep, seconds)

    @precondition(lambda self: self._leased())
    @rule(job=st.runner().flatmap(lambda machine: st.sampled_from(machine._leased())))
    def lose_lease(self, job: int) -> None:
        """The lease of a job runs out; jobs are numbered from 1, and so are their ids."""
        self.run(self._world.lose_lease, job)

    @rule()
    def end_too_late(self) -> None:
        """The next handler that ends well does so too late: its lease has just run out, and its
        job is delivered again."""
        self._world.too_late += 1

    @rule(fault=call_faults(st.just(1)))
    def next_call(self, fault: CallFault) -> None:
        """Something happens to the worker's next call of a kind."""
        self._world.inject(fault)

    @precondition(lambda self: self._is_busy())
    @rule()
    def drop_connection(self) -> None:
        """The worker's connection breaks."""
        self._world.program.proxy.drop_connections()

    @precondition(lambda self: self._is_busy())
    @rule(seconds=st.sampled_from(_SHORT))
    def black_hole(self, seconds: float) -> None:
        """For so long nothing passes between worker and server, though nothing is closed."""
        self._world.inject(BlackHole(0.0, seconds))

    @precondition(lambda self: self._is_busy())
    @rule(how=st.sampled_from(("cancel", "crash", "drain")))
    def restart_worker(self, how: HowToStop) -> None:
        """The worker's process ends, and a new one is started: it drains, or is cancelled, or is
        cut off from the server and cancelled, as if it had crashed."""
        self.run(self._world.restart_worker, how, self._limit)

    @precondition(lambda self: self._is_busy())
    @rule(down=st.sampled_from(_SHORT), drain=st.booleans())
    def restart_server(self, down: float, drain: bool) -> None:
        """The server stops, with a goodbye or without, and is back after ``down`` seconds."""
        self.run(self._world.restart_server, down, drain)

    @precondition(lambda self: self._is_busy())
    @rule(seconds=st.runner().flatmap(lambda machine: st.sampled_from(machine._jumps())))
    def jump_server_clock(self, seconds: float) -> None:
        """Somebody sets the server's clock, ahead or back."""
        self.run(self._world.jump_server_clock, seconds)

    @precondition(lambda self: self._is_busy())
    @rule()
    def settle(self) -> None:
        """All jobs come to their end. What was to happen to coming calls happens."""
        self.run(self._world.settle, self._limit)

    def teardown(self) -> None:
        """The end of the story; called by Hypothesis."""
        try:
            if self._loop is not None and sys.exception() is self._outer:
                self._finish()
        finally:
            if self._loop is not None:
                loop, self._loop = self._loop, None
                loop.close()
            self._held.close()

    def _finish(self) -> None:
        world = self._world
        world.relent()
        self.run(world.settle, self._limit)
        self.run(world.stop, "drain", self._limit)
        answer: object = self.check(self.jobs)  # type: ignore[func-returns-value]
        refuse_async(answer, f"{type(self).__name__}.check")

    # ---- behind them ----

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in cls.without:
            if name not in _RULES:
                raise InvalidArgument(f"{cls.__name__}.without: {name!r} is none of {_RULES}")
            setattr(cls, name, None)

    @property
    def _limit(self) -> float:
        # A little less than that of run(), which has less to say about it.
        return self.settle_within - 1

    @property
    def _stepped(self) -> SteppedLoop[World]:
        # Made when it is needed: Hypothesis ends nothing if __init__ of a subclass fails.
        if self._loop is None:
            if currently_in_test_context() and not current_build_context().is_final:
                # Only the replay of the smallest failing story is worth a log.
                self._held.enter_context(quiet(lambda record: True))
            self._loop = SteppedLoop(lambda: open_world(self.config, self.worker))
        return self._loop

    @property
    def _world(self) -> World:
        return self._stepped.world

    def _leased(self) -> list[int]:
        return [number for number, job in enumerate(self.jobs, 1) if job.state == "leased"]

    def _jumps(self) -> Sequence[float]:
        return _AHEAD + _BACK if self._world.set_back < _MOST_BACK else _AHEAD

    def _is_busy(self) -> bool:
        return bool(self._world.running) or any(not job.is_done for job in self.jobs)

    def _raise_failures(self) -> None:
        failures = self._world.failures
        if failures:
            raise failures[0]

    @classmethod
    def _check_payloads(cls) -> None:
        # At the start of a story: from within a rule, Hypothesis tells of it in a roundabout way.
        name = f"{cls.__name__}.payloads"
        if not isinstance(cls.payloads, Mapping):
            kind = type(cls.payloads).__name__
            raise InvalidArgument(
                f"{name} must be a mapping of job types to strategies, not {kind}"
            )
        if not cls.payloads:
            raise InvalidArgument(f"{name} must say what is enqueued")
        for job_type, strategy in cls.payloads.items():
            if not isinstance(strategy, st.SearchStrategy):
                kind = type(strategy).__name__
                raise InvalidArgument(f"{name}[{job_type!r}] must be a strategy, not {kind}")

    @classmethod
    @cache
    def _requests(cls) -> st.SearchStrategy[Request]:
        return requests(cls.queues, cls.payloads, cls.idempotency_keys)
