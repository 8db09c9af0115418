"""What a state machine plays with: a server, a producer, and a program with a worker.

The program is a client, on its way to the server through a fault proxy, and a worker; it can be
restarted as a process is. What is outside of it (the user's world, the server's jobs) stays.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Final, Literal, TypeAlias

import trio
import trio.testing

from sepp_trio.broker import BrokerConfig
from sepp_trio.broker.engine import Engine
from sepp_trio.broker.store import Store
from sepp_trio.client import SeppClient, open_client
from sepp_trio.errors import JobNotFoundError
from sepp_trio.types import EnqueueRequest, Payload
from sepp_trio.worker import JobCtx, Worker

from .._faults import Fault
from .._lasting import NO_KEEPALIVE
from .._limits import NO_LIMIT
from .._proxy import FaultProxy, open_fault_proxy
from .._recorder import Recorder
from .._server import FragileServer, open_fragile_server
from .._stuck import break_shields, where

HowToStop: TypeAlias = Literal["drain", "cancel", "crash"]

# The same time in every run, so that the same story is the same to the last bit.
_EPOCH_MS: Final = 1_800_000_000_000
_LOOK_EVERY: Final = 1.0


class Program:
    """One life of the worker's process."""

    def __init__(self, client: SeppClient, proxy: FaultProxy, worker: Worker) -> None:
        self.client = client
        self.proxy = proxy
        self.worker = worker
        self.scope = trio.CancelScope()
        """Of the worker's run."""
        self.ended = trio.Event()


class World:
    """Made by :func:`open_world`. ``failures`` are assertions that failed in handlers, and what
    workers died of."""

    def __init__(
        self,
        server: FragileServer,
        recorder: Recorder,
        producer: SeppClient,
        make_worker: Callable[[SeppClient], Worker],
        nursery: trio.Nursery,
    ) -> None:
        self.server = server
        self.recorder = recorder
        self.producer = producer
        self.failures: list[BaseException] = []
        self.running: dict[trio.lowlevel.Task, JobCtx] = {}
        """Handlers that have not ended, by their tasks."""
        self.too_late = 0
        """So many handlers that end well do so when their lease has just run out."""
        self.set_back = 0.0
        """Seconds by which the server's clock was set back in all."""
        self._make_worker = make_worker
        self._nursery = nursery
        self._program: Program | None = None
        self._reachable = True

    @property
    def program(self) -> Program:
        """The one that runs."""
        assert self._program is not None
        return self._program

    # ---- what the rules do ----

    async def enqueue(self, request: EnqueueRequest, turns: int | None) -> None:
        """Store a job, and let so many turns pass; without a number, until all tasks wait."""
        await self.producer.enqueue(request)
        if turns is None:
            await trio.testing.wait_all_tasks_blocked()
        else:
            await self.let_turns_pass(turns)

    async def let_turns_pass(self, turns: int) -> None:
        """Let every task go on to its next checkpoint, so many times."""
        for _ in range(turns):
            await trio.lowlevel.checkpoint()

    async def lose_lease(self, number: int) -> None:
        """Let the lease of the job with this number run out, unless its report comes first."""
        with suppress(JobNotFoundError):
            await self.server.lose_lease(self.recorder.jobs()[number - 1])

    def inject(self, fault: Fault) -> None:
        """Let something go wrong on the program's way to the server."""
        self.program.proxy.inject(fault)

    async def restart_server(self, down: float, drain: bool) -> None:
        """Stop the server, and have it back; returns when the producer is connected again."""
        await self.server.restart(down, drain=drain)
        await self.producer.get_server_info()

    async def jump_server_clock(self, seconds: float) -> None:
        """Set the server's clock ahead, or back; what is due then happens."""
        self.set_back += max(0.0, -seconds)
        await self.server.jump_clock(seconds)
        await trio.testing.wait_all_tasks_blocked()

    async def restart_worker(self, how: HowToStop, within: float) -> None:
        """End the program, and start it anew.

        Raises:
            AssertionError: it does not end.
        """
        await self.stop(how, within)
        await self.start()

    async def settle(self, within: float) -> None:
        """Wait until all jobs are acked or given up.

        Raises:
            AssertionError: they are not, though nothing is in their way.
        """
        with trio.move_on_after(within) as scope:
            await self.recorder.settled(limit=NO_LIMIT)
        if scope.cancelled_caught:
            left = self.recorder.jobs().where(lambda job: not job.is_done)
            raise AssertionError(
                f"after {within:.12g} s without faults not all jobs are done:\n{left}"
                + "".join(f"\n  {line}" for line in self._standing())
            )

    def relent(self) -> None:
        """Let nothing more go wrong."""
        self.too_late = 0
        self.program.proxy.relent()

    # ---- the program ----

    async def start(self) -> None:
        """Start the program; returns once its worker polls."""
        self._reachable = True
        await self._nursery.start(self._live)

    async def stop(self, how: HowToStop, within: float) -> None:
        """End the program: let it drain, or cancel its worker, or cut it off as if its process
        were killed (its handlers are cancelled, and nothing of it reaches the server).

        Raises:
            AssertionError: it does not end within so many seconds.
        """
        program = self.program
        if how == "drain":
            program.worker.shutdown()
        else:
            if how == "crash":
                self._reachable = False
                program.proxy.drop_connections()
            program.scope.cancel(reason="the program is stopped")
        with trio.move_on_after(within) as scope:
            await program.ended.wait()
        if scope.cancelled_caught:
            standing = "".join(f"\n  {line}" for line in self._standing())
            raise AssertionError(
                f"the worker was told to stop ({how}) and has not, {within:.12g} s later:{standing}"
            )

    async def break_up(self) -> None:
        """End the program, whatever holds it."""
        program = self.program
        program.scope.cancel(reason="the story is over")
        while not program.ended.is_set():
            for task, ctx in self.running.items():
                if (scope := ctx._lease.scope) is not None:
                    break_shields(task, scope)
            with trio.move_on_after(_LOOK_EVERY):
                await program.ended.wait()

    async def _live(self, *, task_status: trio.TaskStatus[None]) -> None:
        async with (
            open_fault_proxy(self._dial, server=self.server) as proxy,
            open_client(proxy.connect) as client,
        ):
            worker = self._make_worker(client)
            self._watch(worker)
            program = self._program = Program(client, proxy, worker)
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(self._work, program)
                    task_status.started()
            finally:
                program.ended.set()

    async def _work(self, program: Program, *, task_status: trio.TaskStatus[None]) -> None:
        try:
            with program.scope:
                await program.worker.run(task_status=task_status)
        except trio.Cancelled:
            raise
        except BaseException as error:
            self.failures.append(error)

    async def _dial(self) -> trio.abc.Stream:
        if not self._reachable:
            await trio.lowlevel.checkpoint()
            raise ConnectionRefusedError("the program has crashed")
        return await self.server.connect()

    def _watch(self, worker: Worker) -> None:
        registry = worker._registry
        # One thread after the other: what two do at once is not the same each time.
        registry._threads.total_tokens = 1
        for entry in [*registry._entries.values(), registry._catch_all]:
            if entry is not None:
                entry.call = self._watched(entry.call)

    def _watched(
        self, call: Callable[[Payload | None, JobCtx], Awaitable[None]]
    ) -> Callable[[Payload | None, JobCtx], Awaitable[None]]:
        async def watched(payload: Payload | None, ctx: JobCtx) -> None:
            task = trio.lowlevel.current_task()
            self.running[task] = ctx
            try:
                await call(payload, ctx)
                if self.too_late:
                    self.too_late -= 1
                    await self._run_out(ctx)
            except BaseException as error:
                self.failures.extend(_failed_assertions(error))
                raise
            finally:
                del self.running[task]

        return watched

    async def _run_out(self, ctx: JobCtx) -> None:
        with trio.CancelScope(shield=True), suppress(JobNotFoundError, OSError):
            # No deadline: a commit in memory.
            await self.server.lose_lease(ctx)

    def _standing(self) -> list[str]:
        return [
            f"the handler of job {ctx.job_type!r}, attempt {ctx.attempt},"
            f" {'was cancelled (' + ctx.cancel_reason + ') and ' if ctx.cancel_reason else ''}"
            f"waits at {where(task)}"
            for task, ctx in self.running.items()
        ]


def _failed_assertions(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [found for inner in error.exceptions for found in _failed_assertions(inner)]
    return [error] if isinstance(error, AssertionError) else []


@asynccontextmanager
async def open_world(
    config: BrokerConfig, make_worker: Callable[[SeppClient], Worker]
) -> AsyncIterator[World]:
    """A world, its program running. Ends what is left of it."""
    recorder = Recorder()
    numbers = count(1)

    def make_engine(store: Store, config: BrokerConfig) -> Engine:
        return Engine(store, config, new_id=lambda: uuid.UUID(int=next(numbers)))

    trio.to_thread.current_default_thread_limiter().total_tokens = 1
    async with (
        open_fragile_server(
            config, epoch_ms=_EPOCH_MS, make_engine=make_engine, recorder=recorder
        ) as server,
        open_client(server.connect, keepalive_interval=NO_KEEPALIVE) as producer,
        trio.open_nursery() as nursery,
    ):
        world = World(server, recorder, producer, make_worker, nursery)
        await world.start()
        yield world
        await world.break_up()
