"""Which function handles which job type."""

from __future__ import annotations

import inspect
import math
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import trio

from ..errors import DuplicateHandlerError
from ..types import Duration, Payload
from ..types._checks import integer, seconds, text

if TYPE_CHECKING:
    from .context import JobCtx
    from .job import RunningJob

Handler: TypeAlias = "Callable[[Payload | None, JobCtx], Awaitable[None] | None]"
"""An async function, or a plain one, which runs in a thread."""

H = TypeVar("H", bound="Handler")


class Entry:
    """A handler with its limits, and the jobs that wait for its own."""

    __slots__ = ("call", "max_in_flight", "name", "running", "timeout", "waiting")

    def __init__(
        self,
        name: str,
        call: Callable[[Payload | None, JobCtx], Awaitable[None]],
        timeout: float | None,
        max_in_flight: float,
    ) -> None:
        self.name = name
        self.call = call
        self.timeout = timeout
        self.max_in_flight = max_in_flight
        self.running = 0
        self.waiting: deque[RunningJob] = deque()


class Registry:
    """The handlers of a worker; may change while it runs, for the jobs that start later."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._catch_all: Entry | None = None
        # The worker's slots bound the threads: a limit here would only make jobs wait twice.
        self._threads = trio.CapacityLimiter(math.inf)

    def __bool__(self) -> bool:
        """Whether there is any handler."""
        return bool(self._entries) or self._catch_all is not None

    def __len__(self) -> int:
        """How many job types have a handler."""
        return len(self._entries)

    def find(self, job_type: str) -> Entry | None:
        """The handler for a job type."""
        return self._entries.get(job_type, self._catch_all)

    def add(
        self,
        job_type: str,
        handler: Handler,
        *,
        timeout: Duration | None,
        max_in_flight: int | None,
        replace: bool,
    ) -> None:
        """Register; see the methods of ``Worker``."""
        text(job_type, "job_type")
        entry = self._entry(job_type, handler, timeout, max_in_flight)
        if not replace and job_type in self._entries:
            raise DuplicateHandlerError(job_type)
        self._entries[job_type] = entry

    def remove(self, job_type: str) -> bool:
        """Forget the handler of a job type; whether there was one."""
        return self._entries.pop(job_type, None) is not None

    def set_catch_all(
        self, handler: Handler, *, timeout: Duration | None, max_in_flight: int | None
    ) -> None:
        """Handle all types that have no handler of their own."""
        self._catch_all = self._entry("(any)", handler, timeout, max_in_flight)

    def _entry(
        self, name: str, handler: Handler, timeout: Duration | None, max_in_flight: int | None
    ) -> Entry:
        is_async = check_handler(handler)
        if timeout is not None:
            timeout = seconds(timeout, "timeout")
        limit = math.inf if max_in_flight is None else integer(max_in_flight, "max_in_flight", 1)
        call: Any = handler if is_async else partial(_in_thread, handler, self._threads)
        return Entry(name, call, timeout, limit)


async def _in_thread(
    handler: Callable[[Payload | None, JobCtx], object],
    limiter: trio.CapacityLimiter,
    payload: Payload | None,
    ctx: JobCtx,
) -> None:
    # Not abandoned: a thread that goes on after its job was given back would be a second run.
    # It learns of a cancel by trio.from_thread.check_cancelled().
    # Trio refuses a function that returns a coroutine.
    await trio.to_thread.run_sync(handler, payload, ctx, limiter=limiter, abandon_on_cancel=False)


def check_handler(handler: Handler) -> bool:
    """Whether ``handler`` is async (else it runs in a thread).

    Raises:
        TypeError: it is nothing that can handle a job; says why.
    """
    given: Any = handler
    if inspect.iscoroutine(given):
        given.close()
        raise TypeError(
            f"handler must be a function: pass {given.__name__}, not {given.__name__}(...)"
        )
    if isinstance(given, type):
        raise TypeError(f"handler must be a function, not the class {given.__name__}")
    if not callable(given):
        raise TypeError(f"handler must be a function, not {type(given).__name__}")
    name = getattr(given, "__qualname__", None) or type(given).__name__
    # A callable object is what its __call__ is; functions and methods are what they are.
    plain = given
    while isinstance(plain, partial):
        plain = plain.func
    if not (inspect.isroutine(plain)):
        plain = type(plain).__call__
    if inspect.isasyncgenfunction(plain) or inspect.isgeneratorfunction(plain):
        raise TypeError(f"handler {name} is a generator function: it must not yield")
    try:
        inspect.signature(given).bind(None, None)
    except TypeError:
        raise TypeError(
            f"handler {name} must take two arguments, payload and ctx, but its signature is"
            f" {inspect.signature(given)}"
        ) from None
    except ValueError:
        pass  # some builtins do not tell their signature
    return inspect.iscoroutinefunction(plain)
