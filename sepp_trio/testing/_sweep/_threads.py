"""Checkpoints in the handler's threads: each ``trio.from_thread.check_cancelled()``."""

from __future__ import annotations

import queue
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import trio

from .._threads import RUN_SYNC
from ._lines import OwnCode, Place
from ._report import Line
from ._tree import Tree


class ThreadChecks:
    """Makes every look for a cancel in a thread a meeting with the loop.

    Trio leaves word for a thread in a list that ``check_cancelled`` reads: what stands there is
    called. Here stands a function that waits for the loop, so that a cancel comes at this look
    and not at another one.
    """

    def __init__(self, tree: Tree, own: OwnCode, function_thread: Callable[[], int | None]) -> None:
        self.visits = 0
        self.visited: Callable[[Line | None], None] = lambda line: None
        self.raised: Callable[[BaseException, Line | None], None] = lambda error, line: None
        self._function_thread = function_thread
        self._own = own
        self._tree = tree
        self._registers: list[list[Any]] = []
        self._token = trio.lowlevel.current_trio_token()

    @property
    def found(self) -> bool:
        """Whether the handler uses threads."""
        return bool(self._registers)

    def look(self, task: trio.lowlevel.Task) -> None:
        """The task has come to a wait: perhaps for a thread that is about to start."""
        for frame, _ in task.iter_await_frames():
            if frame.f_code is RUN_SYNC:
                register = frame.f_locals.get("cancel_register")
                if isinstance(register, list) and not any(register is r for r in self._registers):
                    self._registers.append(register)
        self.watch()

    def watch(self) -> None:
        """Stand in for whatever a thread would find at its next look."""
        for register in self._registers:
            found = register[0]
            if not isinstance(found, _Look):
                register[0] = _Look(self, register, found)

    def place(self, task: trio.lowlevel.Task) -> Place | None:
        """Where the thread of a plain function stands, if its task is this one, and about to run:
        because the thread waits for it."""
        thread = self._function_thread()
        if thread is None or task is not self._tree.root:
            return None
        frame = sys._current_frames().get(thread)
        line = self._own.in_thread(frame)
        return None if line is None else Place(line, None, None)

    def meet(self, line: Line | None) -> None:
        """In the thread: wait until the loop has seen it."""
        met: queue.SimpleQueue[None] = queue.SimpleQueue()

        def arrive() -> None:
            try:
                self.visits += 1
                self.visited(line)
                self.watch()
            finally:
                met.put(None)

        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(arrive)
            met.get()


class _Look:
    """What a thread finds when it looks for a cancel: what Trio has left there, and us."""

    def __init__(self, checks: ThreadChecks, register: list[Any], found: Any) -> None:
        self._checks = checks
        self._register = register
        self._found = found

    def __call__(self) -> None:
        line = self._checks._own.in_thread(sys._getframe(1))
        self._checks.meet(line)
        latest = self._register[0]
        found = latest._found if isinstance(latest, _Look) else latest
        if found is None:
            return
        try:
            found()
        except trio.Cancelled as error:
            self._checks.raised(error, line)
            raise
