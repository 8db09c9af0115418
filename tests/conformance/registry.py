"""The list of scenarios, and what each of them runs in."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from tests.conformance.configs import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.conformance.face import Ack, Delivery, Face, NewJob
    from tests.conformance.loops import Loop, Task
    from tests.conformance.servers import Server

# What has been due for so many seconds has happened, also on a machine that stands still at times.
LATE = 4.0

T = TypeVar("T")
_numbers = itertools.count(1)


@dataclass
class Env:
    """What a scenario gets: a server, a connection to it, and the loop."""

    name: str
    driver: str
    loop: Loop
    server: Server
    connector: Callable[..., contextlib.AbstractAsyncContextManager[Face]]
    stack: contextlib.AsyncExitStack
    face: Face = field(init=False)
    _tasks: list[Task[object]] = field(default_factory=list)

    def queue(self, label: str = "") -> str:
        """A queue name that nobody else uses."""
        return f"{self.name[:24]}-{self.driver}-{next(_numbers)}{label}"

    def declared(self, name: str) -> str:
        """This driver's copy of a queue that the config declares."""
        return f"{name}-{self.driver}"

    async def connect(self, *, api_key: str | None = None, authority: bytes | None = None) -> Face:
        """Another connection to the server (as it is now), closed when the scenario ends."""
        return await self.stack.enter_async_context(
            self.connector(self.server.address, api_key=api_key, authority=authority)
        )

    def start(self, function: Callable[..., Awaitable[T]], *args: object) -> Task[T]:
        """Run a call beside the scenario; cancelled at its end if it still runs."""
        task = self.loop.start(function, *args)
        self._tasks.append(task)
        return task

    async def stop_tasks(self) -> None:
        """Cancel what was started and still runs, and wait for it."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            await task.settled()

    async def sleep(self, seconds: float) -> None:
        await self.loop.sleep(seconds)

    async def eventually(self, check: Callable[[], bool], within: float = 15.0) -> None:
        """Wait until `check` is true; fail after `within` seconds."""
        deadline = self.loop.now() + within
        while not check():
            assert self.loop.now() < deadline, f"not within {within} s"
            await self.loop.sleep(0.02)

    async def enqueue(self, *jobs: NewJob) -> list[str]:
        """Enqueue jobs that must be taken as new; their ids."""
        ids = []
        for result in await self.face.enqueue_batch(jobs):
            assert _is_new(result), result
            ids.append(result.job_id)  # type: ignore[union-attr]
        return ids

    async def reserve_one(self, queue: str, *, lease: float = 30.0, wait: float = 5.0) -> Delivery:
        """Reserve exactly one job that is there or comes within `wait`."""
        jobs = await self.face.reserve([queue], lease=lease, wait=wait)
        assert len(jobs) == 1, jobs
        return jobs[0]

    async def is_empty(self, queue: str) -> bool:
        """Whether nothing can be reserved from `queue` now."""
        return not await self.face.reserve([queue], lease=1.0)


def _is_new(result: Ack | object) -> bool:
    return getattr(result, "deduplicated", None) is False


@dataclass(frozen=True, slots=True)
class Scenario:
    """One statement about the server."""

    name: str
    function: Callable[[Env], Awaitable[None]]
    config: str
    own_server: bool
    limit: float


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    *,
    config: str = DEFAULT,
    own_server: bool = False,
    limit: float = 60.0,
) -> Callable[[Callable[[Env], Awaitable[None]]], Callable[[Env], Awaitable[None]]]:
    """Register a scenario under its function's name.

    `config` names the TOML of configs.py; `own_server` gives it a server that no other scenario
    uses (it may stop it, or look at all of its dead letters), on a database that outlives the
    process; `limit` is its time in seconds.
    """

    def register(function: Callable[[Env], Awaitable[None]]) -> Callable[[Env], Awaitable[None]]:
        name = function.__name__
        assert name not in SCENARIOS, f"two scenarios are called {name}"
        SCENARIOS[name] = Scenario(name, function, config, own_server, limit)
        return function

    return register
