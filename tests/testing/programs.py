"""Random small handlers, run by an interpreter: what they do is a value that a model can read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

import trio
from hypothesis import strategies as st


@dataclass(frozen=True)
class Sleep:
    """A wait that its own deadline ends."""


@dataclass(frozen=True)
class Wait:
    """A wait that somebody else ends."""


@dataclass(frozen=True)
class Yield:
    """A plain checkpoint."""


@dataclass(frozen=True)
class Send:
    """Looks for a cancel first, then does its work, then lets others run."""


@dataclass(frozen=True)
class Shielded:
    """A section with a shield and a deadline that is never reached."""

    body: Program


@dataclass(frozen=True)
class Bounded:
    """A section with a deadline that ends it, if it sleeps for long enough."""

    body: Program


@dataclass(frozen=True)
class Tidy:
    """A body and its cleanup."""

    body: Program
    cleanup: Program


@dataclass(frozen=True)
class Nursery:
    """Tasks, and a body beside them."""

    tasks: tuple[Program, ...]
    body: Program


@dataclass(frozen=True)
class Swallow:
    """A body whose cancels do not get out: a mistake."""

    body: Program


Step: TypeAlias = Sleep | Wait | Yield | Send | Shielded | Bounded | Tidy | Nursery | Swallow
Program: TypeAlias = tuple[Step, ...]

PLAIN: st.SearchStrategy[Step] = st.sampled_from([Sleep(), Wait(), Yield(), Send()])


def _larger_with_mistakes(programs: st.SearchStrategy[Program]) -> st.SearchStrategy[Program]:
    steps = st.one_of(
        PLAIN,
        st.builds(Swallow, programs),
        st.builds(Shielded, programs),
        st.builds(Tidy, programs, programs),
        st.builds(Nursery, st.lists(programs, max_size=2).map(tuple), programs),
    )
    return st.lists(steps, max_size=3).map(tuple)


def _larger(programs: st.SearchStrategy[Program]) -> st.SearchStrategy[Program]:
    steps = st.one_of(
        PLAIN,
        st.builds(Shielded, programs),
        st.builds(Bounded, programs),
        st.builds(Tidy, programs, programs),
        st.builds(Nursery, st.lists(programs, max_size=3).map(tuple), programs),
    )
    return st.lists(steps, max_size=3).map(tuple)


def size(program: Program) -> int:
    """How many steps there are, nested ones too."""
    return sum(1 + sum(size(part) for part in parts(step)) for step in program)


def parts(step: Step) -> tuple[Program, ...]:
    """The programs in a step."""
    match step:
        case Shielded(body) | Bounded(body) | Swallow(body):
            return (body,)
        case Tidy(body, cleanup):
            return body, cleanup
        case Nursery(tasks, body):
            return *tasks, body
    return ()


PLAIN_PROGRAMS: st.SearchStrategy[Program] = st.lists(PLAIN, max_size=8).map(tuple)
PROGRAMS: st.SearchStrategy[Program] = st.recursive(
    st.lists(PLAIN, max_size=3).map(tuple), _larger, max_leaves=5
).filter(lambda program: size(program) <= 14)

MISTAKEN_PROGRAMS: st.SearchStrategy[Program] = st.recursive(
    st.lists(PLAIN, max_size=3).map(tuple), _larger_with_mistakes, max_leaves=5
).filter(lambda program: size(program) <= 14)


class Interpreter:
    """Runs a program; ``effects`` are the numbers of the steps that were completed, in order.
    The tasks that help it are somebody else's."""

    def __init__(self, others: trio.Nursery) -> None:
        self._others = others
        self.effects: list[int] = []
        self._numbers: Iterator[int] = count()
        self._send, self._receive = trio.open_memory_channel[int](1000)

    async def run(self, program: Program) -> None:
        """Run it once."""
        self._numbers = count(1)
        await self._run([(step, next(self._numbers)) for step in program])

    async def _run(self, steps: list[tuple[Step, int]]) -> None:
        for step, number in steps:
            await self._do(step, number)
            self.effects.append(number)

    def _numbered(self, program: Program) -> list[tuple[Step, int]]:
        return [(step, next(self._numbers)) for step in program]

    async def _do(self, step: Step, number: int) -> None:
        # No two sums of these are the same: what ends at the same time ends in no fixed order.
        seconds = 1 + 2.0 ** -(number + 2)
        match step:
            case Sleep():
                await trio.sleep(seconds)
            case Wait():
                event = trio.Event()
                self._others.start_soon(_set, event, seconds)
                await event.wait()
            case Yield():
                await trio.lowlevel.checkpoint()
            case Send():
                await self._send.send(number)
            case Shielded(body):
                with trio.move_on_after(1000, shield=True):
                    await self._run(self._numbered(body))
            case Bounded(body):
                with trio.move_on_after(1.5 * seconds):
                    await self._run(self._numbered(body))
            case Swallow(body):
                with contextlib.suppress(BaseException):
                    await self._run(self._numbered(body))
            case Tidy(body, cleanup):
                try:
                    await self._run(self._numbered(body))
                finally:
                    with trio.move_on_after(1000, shield=True):
                        await self._run(self._numbered(cleanup))
            case Nursery(tasks, body):
                async with trio.open_nursery() as nursery:
                    for task in tasks:
                        nursery.start_soon(self._run, self._numbered(task))
                    await self._run(self._numbered(body))


async def _set(event: trio.Event, seconds: float) -> None:
    await trio.sleep(seconds)
    event.set()
