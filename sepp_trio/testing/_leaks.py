"""``assert_no_leaks``: what a block leaves behind, found by looking at Trio's tasks."""

from __future__ import annotations

import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from traceback import walk_stack
from types import FrameType
from typing import Final

import trio
from grpclib.exceptions import GRPCError

from sepp_trio.broker import Broker
from sepp_trio.broker.committer import Committer
from sepp_trio.lease import LeaseKeeper
from sepp_trio.wire import decoder_of, records

from ._in_trio import check_in_trio
from ._stuck import own_line, where

_PATIENCE: Final = (0.0, 0.001, 0.01, 0.05)
"""Real seconds of quiet in which what is about to end may end: closed sockets take a moment."""

_PLUMBING: Final = tuple(
    f"sepp_trio.{room}." for room in ("transport", "client", "lease", "broker", "testing")
)


@dataclass(slots=True)
class _Sight:
    """What there is at one moment."""

    tasks: set[trio.lowlevel.Task] = field(default_factory=set)
    nurseries: set[trio.Nursery] = field(default_factory=set)
    leases: dict[tuple[str, int], str] = field(default_factory=dict)
    threads: int = 0
    tokens: dict[trio.CapacityLimiter, int] = field(default_factory=dict)


class _Starts(trio.abc.Instrument):
    """Knows where tasks were started: what runs no code of the user's can be found by that."""

    def __init__(self) -> None:
        self._lines: dict[trio.lowlevel.Task, str | None] = {}

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        frames = [(frame.f_code, line) for frame, line in walk_stack(sys._getframe(1))]
        self._lines[task] = own_line(frames[::-1])

    def task_exited(self, task: trio.lowlevel.Task) -> None:
        self._lines.pop(task, None)

    def described(self, task: trio.lowlevel.Task) -> str:
        """The task, and where to look for it."""
        own = own_line([(frame.f_code, line) for frame, line in task.iter_await_frames()])
        start = self._lines.get(task)
        if own is None and start is not None:
            return f"task {task.name}, started at {start}"
        return f"task {task.name}, at {where(task)}"


@asynccontextmanager
async def assert_no_leaks(*limiters: trio.CapacityLimiter) -> AsyncIterator[None]:
    """Assert that the block leaves nothing behind: no task in a nursery that was there before,
    no client or broker open, no job leased, no thread at work, no token taken from the default
    thread limiter or from the ``limiters`` given.

    What was there before may stay; connections of brokers and clients that stay may come and
    go. Nothing else should start tasks meanwhile. Waits on the real clock, up to a tenth of a
    second, for what is about to end; no time passes on a ``MockClock``.

    Raises:
        AssertionError: lists what is left. An exception of the block comes out instead.
        RuntimeError: this is no run of Trio.
    """
    from trio.testing import wait_all_tasks_blocked  # here, for it imports pytest if it is there

    check_in_trio("assert_no_leaks")
    before = await _look(limiters)
    starts = _Starts()
    trio.lowlevel.add_instrument(starts)
    try:
        yield
    finally:
        trio.lowlevel.remove_instrument(starts)
    for patience in _PATIENCE:
        await wait_all_tasks_blocked(patience)
        left = list(_left(before, await _look(limiters), starts))
        if not left:
            return
    raise AssertionError("\n  ".join(["the block has left behind:", *left]))


async def _look(limiters: tuple[trio.CapacityLimiter, ...]) -> _Sight:
    from trio.testing import active_thread_count

    sight = _Sight(threads=active_thread_count())
    for limiter in (trio.to_thread.current_default_thread_limiter(), *limiters):
        sight.tokens[limiter] = limiter.borrowed_tokens
    committers: list[Committer] = []
    root = trio.lowlevel.current_root_task()
    assert root is not None
    waiting = [root]
    while waiting:
        task = waiting.pop()
        sight.tasks.add(task)
        sight.nurseries.update(task.child_nurseries)
        waiting.extend(child for nursery in task.child_nurseries for child in nursery.child_tasks)
        owner = _owner(task)
        if isinstance(owner, LeaseKeeper):
            for lease in owner.held.values():
                sight.leases[lease.job_id, lease.attempt] = f"job {lease.job_id}, held by a client"
        elif isinstance(owner, Committer):
            committers.append(owner)
    for committer in committers:
        await _look_at_leases(committer, sight)
    return sight


async def _look_at_leases(committer: Committer, sight: _Sight) -> None:
    decode = decoder_of(records.Job)
    try:
        contents = await committer.submit(lambda _: committer._store.contents())
    except GRPCError:
        return  # closed, or its disk fails
    for place, _, attempt, _, _, body in contents:
        if place == "leased":
            job = decode(body)
            sight.leases[str(uuid.UUID(job.id)), attempt] = (
                f"job {job.id} ({job.job_type}, attempt {attempt}/{job.max_attempts})"
                f" of queue {job.queue!r}, leased"
            )


def _left(before: _Sight, now: _Sight, starts: _Starts) -> Iterator[str]:
    """What is there now and was not before, a line for each."""
    root = trio.lowlevel.current_root_task()
    assert root is not None
    owners: set[str] = set()
    plumbing: list[str] = []
    for task in _new_tasks(root, before):
        owner = _owner(task)
        if isinstance(owner, LeaseKeeper):
            owners.add("a client that is open")
        elif isinstance(owner, Committer):
            owners.add("a broker that is open")
        elif _is_plumbing(task):
            plumbing.append(starts.described(task))
        else:
            yield starts.described(task)
    # Their other tasks say nothing more.
    yield from sorted(owners) or plumbing
    for key in now.leases.keys() - before.leases.keys():
        yield now.leases[key]
    if now.threads > before.threads:
        yield f"{_counted(now.threads - before.threads, 'thread')} at work"
    default = trio.to_thread.current_default_thread_limiter()
    for limiter, taken in now.tokens.items():
        if taken > before.tokens[limiter]:
            name = "the default thread limiter" if limiter is default else repr(limiter)
            yield f"{_counted(taken - before.tokens[limiter], 'token')} of {name}"


def _new_tasks(task: trio.lowlevel.Task, before: _Sight) -> Iterator[trio.lowlevel.Task]:
    """The topmost tasks that were not there before and do not serve what was."""
    for nursery in task.child_nurseries:
        serves = nursery in before.nurseries or _is_plumbing(task)
        for child in nursery.child_tasks:
            if child in before.tasks:
                yield from _new_tasks(child, before)
            elif not (serves and _is_plumbing(child)):
                yield child


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _frames(task: trio.lowlevel.Task) -> Iterator[FrameType]:
    for frame, _ in task.iter_await_frames():
        if not frame.f_globals.get("__name__", "").startswith("tricycle."):
            yield frame


def _owner(task: trio.lowlevel.Task) -> object:
    """The client's keeper or the broker's committer, if this is its main task."""
    for frame in _frames(task):
        if frame.f_code in (LeaseKeeper.run.__code__, Committer.run.__code__):
            owner: object = frame.f_locals["self"]
            return owner
    return None


def _is_plumbing(task: trio.lowlevel.Task) -> bool:
    """Whether it belongs to a client or a broker, and not to who has started it."""
    frame = next(_frames(task), None)
    if frame is None or frame.f_code is Broker.serve.__code__:
        return False
    module: str = frame.f_globals.get("__name__", "")
    return module.startswith(_PLUMBING)
