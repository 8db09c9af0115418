"""Handlers that do not come to an end: where they stand, and how to get them out."""

from __future__ import annotations

import linecache
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any, Final

import trio

import sepp_trio

_OURS: Final = str(Path(sepp_trio.__file__).parent)
_LIBRARIES: Final = tuple({sysconfig.get_path("stdlib"), str(Path(trio.__file__).parent), _OURS})


def family(task: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    """The task and all tasks below it."""
    yield task
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from family(child)


def where(task: trio.lowlevel.Task) -> str:
    """The innermost line of the user's own code at which the task waits."""
    place = ""
    for frame, line in task.iter_await_frames():
        code: CodeType = frame.f_code
        if not place or not code.co_filename.startswith(_LIBRARIES):
            place = f"{code.co_filename}:{line} in {code.co_name}"
            if text := linecache.getline(code.co_filename, line).strip():
                place += f": {text}"
    return place or task.name


def break_shields(task: trio.lowlevel.Task, below: trio.CancelScope) -> bool:
    """Let a cancel of ``below`` reach all that the task does; whether a shield stood in its way.

    Trio offers no way to do so, for good reason: only for tasks that would hang a test.
    """
    broken = False
    for member in family(task):
        status: Any = member._cancel_status
        while status is not None and status._scope is not below:
            if status._scope.shield:
                status._scope.shield = False
                broken = True
            status = status._parent
    return broken
