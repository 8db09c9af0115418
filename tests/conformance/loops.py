"""The two event loops behind one small face, so that a scenario need not know which it runs on."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Task(Protocol[T_co]):
    """A call that runs beside the scenario."""

    @property
    def done(self) -> bool: ...
    async def result(self) -> T_co:
        """Wait for it; its value, or its exception raised."""
        ...

    def cancel(self) -> None: ...
    async def settled(self) -> None:
        """Wait until it has ended, however."""
        ...


class Loop(Protocol):
    """What the suite needs from an event loop. Seconds everywhere."""

    def run(self, main: Callable[[], Awaitable[None]]) -> None: ...
    def start(self, function: Callable[..., Awaitable[T]], *args: object) -> Task[T]: ...
    def semaphore(self, value: int) -> trio.Semaphore | asyncio.Semaphore: ...
    async def sleep(self, seconds: float) -> None: ...
    async def limited(self, seconds: float, function: Callable[[], Awaitable[None]]) -> None:
        """Run `function`, at most so long; TimeoutError after that."""
        ...

    async def in_thread(self, function: Callable[[], T]) -> T: ...
    def now(self) -> float: ...


class _TrioTask(Generic[T]):
    def __init__(self, function: Callable[..., Awaitable[T]], args: tuple[object, ...]) -> None:
        self._function = function
        self._args = args
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        self._value: T | None = None
        self._error: Exception | None = None

    async def run(self) -> None:
        try:
            with self._scope:
                self._value = await self._function(*self._args)
        except Exception as error:  # kept for whoever asks for the result
            self._error = error
        finally:
            self._ended.set()

    @property
    def done(self) -> bool:
        return self._ended.is_set()

    def cancel(self) -> None:
        self._scope.cancel()

    async def settled(self) -> None:
        await self._ended.wait()

    async def result(self) -> T:
        await self._ended.wait()
        if self._error is not None:
            raise self._error
        if self._scope.cancelled_caught:
            raise RuntimeError("the task was cancelled")
        return self._value  # type: ignore[return-value]


class TrioLoop:
    """Scenarios under Trio."""

    _nursery: trio.Nursery

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        async def body() -> None:
            async with trio.open_nursery() as self._nursery:
                await main()
                self._nursery.cancel_scope.cancel()

        trio.run(body)

    def start(self, function: Callable[..., Awaitable[T]], *args: object) -> Task[T]:
        task = _TrioTask(function, args)
        self._nursery.start_soon(task.run)
        return task

    def semaphore(self, value: int) -> trio.Semaphore:
        return trio.Semaphore(value)

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    async def limited(self, seconds: float, function: Callable[[], Awaitable[None]]) -> None:
        with trio.move_on_after(seconds) as scope:
            await function()
        if scope.cancelled_caught:
            raise TimeoutError(f"not done after {seconds} s")

    async def in_thread(self, function: Callable[[], T]) -> T:
        return await trio.to_thread.run_sync(function)

    def now(self) -> float:
        return time.monotonic()


class _AsyncioTask(Generic[T]):
    def __init__(self, task: asyncio.Task[T]) -> None:
        self._task = task

    @property
    def done(self) -> bool:
        return self._task.done()

    def cancel(self) -> None:
        self._task.cancel()

    async def settled(self) -> None:
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self._task.exception()  # looked at: asyncio is not to complain

    async def result(self) -> T:
        await asyncio.wait([self._task])
        if self._task.cancelled():
            raise RuntimeError("the task was cancelled")
        return self._task.result()


class AsyncioLoop:
    """Scenarios under asyncio."""

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        async def body() -> None:
            await main()

        asyncio.run(body())

    def start(self, function: Callable[..., Awaitable[T]], *args: object) -> Task[T]:
        async def body() -> T:
            return await function(*args)

        return _AsyncioTask(asyncio.get_running_loop().create_task(body()))

    def semaphore(self, value: int) -> asyncio.Semaphore:
        return asyncio.Semaphore(value)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def limited(self, seconds: float, function: Callable[[], Awaitable[None]]) -> None:
        async with asyncio.timeout(seconds):
            await function()

    async def in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.to_thread(function)

    def now(self) -> float:
        return time.monotonic()
