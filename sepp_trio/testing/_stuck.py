"""Handlers that do not come to an end: where they stand, and how to get them out."""

from __future__ import annotations

import linecache
import sys
import sysconfig
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from traceback import walk_stack
from types import CodeType
from typing import Any, Final

import outcome
import trio

import sepp_trio

from ._threads import waits_for_thread

_LIBRARIES: Final = tuple(
    {
        sysconfig.get_path("stdlib"),
        *(str(Path(str(library.__file__)).parent) for library in (trio, outcome, sepp_trio)),
    }
)


def family(task: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    """The task and all tasks below it."""
    yield task
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from family(child)


def where(task: trio.lowlevel.Task) -> str:
    """The innermost line of the user's own code at which the task waits, or its thread works."""
    lines = [(frame.f_code, line) for frame, line in task.iter_await_frames()]
    if waits_for_thread(task):
        lines += _thread_lines(task)
    return own_line(lines) or (_shown(*lines[-1]) if lines else task.name)


def own_line(lines: Sequence[tuple[CodeType, int]]) -> str | None:
    """The last line of the user's own code, if there is one."""
    own = [line for line in lines if not line[0].co_filename.startswith(_LIBRARIES)]
    return _shown(*own[-1]) if own else None


def _shown(code: CodeType, line: int) -> str:
    text = linecache.getline(code.co_filename, line).strip()
    return f"{code.co_filename}:{line} in {code.co_name}: {text}"


def _thread_lines(task: trio.lowlevel.Task) -> list[tuple[CodeType, int]]:
    """Where the thread of the task stands, outermost first."""
    for thread in threading.enumerate():
        # Trio's own name for it: "function from task".
        if thread.name.endswith(f" from {task.name}") and thread.ident is not None:
            frame = sys._current_frames().get(thread.ident)
            return [(item.f_code, line) for item, line in walk_stack(frame)][::-1]
    return []


def break_shields(task: trio.lowlevel.Task, below: trio.CancelScope) -> bool:
    """Let a cancel of ``below`` reach all that the task does; whether a shield stood in its way.

    Trio offers no way to do so, for good reason: only for tasks that would hang a test.
    """
    broken = False
    for member in family(task):
        shields = []
        status: Any = member._cancel_status
        while status is not None and status._scope is not below:
            if status._scope.shield:
                shields.append(status._scope)
            status = status._parent
        if status is None:
            continue  # it is out of reach, shields or not
        for scope in shields:
            scope.shield = False
            broken = True
    return broken
