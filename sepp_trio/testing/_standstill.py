"""A clock that does not move lets no limit be over: real time is the backstop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import trio

from ._stuck import break_shields

_REAL_SECONDS: Final = 30.0
"""For so long, and up to twice as long, a wait may go on while the clock stands still."""


class Backstop:
    """Cancels :attr:`scope` if that has been the same and a ``MockClock`` has not moved for half
    a minute of real time, as when a task spins: the clock leaps only when all tasks wait."""

    def __init__(self) -> None:
        self.scope: trio.CancelScope | None = None
        """The wait that goes on now."""
        self.task: trio.lowlevel.Task | None = None
        """Who waits there, if its shields are not to keep it."""
        self._seen: tuple[trio.CancelScope | None, float] | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look on while the block runs. Other clocks move by themselves."""
        if not hasattr(trio.lowlevel.current_clock(), "autojump_threshold"):
            yield
            return
        self._look()
        over = threading.Event()
        token = trio.lowlevel.current_trio_token()

        def watch() -> None:
            with suppress(trio.RunFinishedError):
                while not over.wait(_REAL_SECONDS):
                    token.run_sync_soon(self._look, idempotent=True)

        trio.lowlevel.start_thread_soon(watch, lambda _: None)
        try:
            yield
        finally:
            over.set()

    def _look(self) -> None:
        seen = self.scope, trio.current_time()
        if seen == self._seen and self.scope is not None:
            self.scope.cancel(reason="the clock stands still")
            if self.task is not None:
                break_shields(self.task, self.scope)
        self._seen = seen


async def limit_over(limit: float) -> str:
    """Wait for so many seconds on Trio's clock, or until the backstop holds; which of the two
    it was. A checkpoint."""
    backstop = Backstop()
    with trio.move_on_after(limit) as backstop.scope, backstop.watching():
        await trio.sleep_forever()
    if trio.current_time() < backstop.scope.deadline:
        return f"{_REAL_SECONDS:g} s of real time in which Trio's clock stood still"
    return f"{limit:.12g} s on Trio's clock"
