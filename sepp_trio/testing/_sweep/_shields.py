"""Whose shield it is that keeps a cancel out."""

from __future__ import annotations

import contextlib
import gc
import types
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import trio

from ._lines import OwnCode

_FAR: Final = 8
_MANY: Final = 2000
_EXITS: Final = ("__exit__", "__aexit__")
_MANAGERS: Final = (
    contextlib.AbstractContextManager,
    contextlib.AbstractAsyncContextManager,
    trio.Nursery,
)
_INNER: Final = (dict, deque, tuple)
"""What managers keep their parts in."""


def opened_by_own_code(scope: trio.CancelScope, task: trio.lowlevel.Task, own: OwnCode) -> bool:
    """Whether own code has opened the scope: the outermost function, of the task or those above
    it, that has it on its stack. The interpreter keeps what a ``with`` has entered there."""
    opener: types.CodeType | None = None
    current: trio.lowlevel.Task | None = task
    while current is not None:
        found = (_opener(awaited, code, scope) for awaited, code in awaited_by(current))
        opener = next((code for code in found if code is not None), opener)
        nursery = current.parent_nursery
        current = None if nursery is None else nursery.parent_task
    return opener is not None and own.owns(opener)


def awaited_by(task: trio.lowlevel.Task) -> Iterator[tuple[Any, types.CodeType]]:
    """A task's coroutine, what that awaits, and so on, each with its code."""
    awaited: Any = task.coro
    while awaited is not None:
        if isinstance(awaited, types.CoroutineType):
            yield awaited, awaited.cr_code
            awaited = awaited.cr_await
        elif isinstance(awaited, types.GeneratorType):
            yield awaited, awaited.gi_code
            awaited = awaited.gi_yieldfrom
        elif isinstance(awaited, types.AsyncGeneratorType):
            yield awaited, awaited.ag_code
            awaited = awaited.ag_await
        else:
            awaited = next(
                (
                    found
                    for found in gc.get_referents(awaited)
                    if isinstance(found, types.AsyncGeneratorType)
                ),
                None,
            )


def _opener(awaited: Any, code: types.CodeType, scope: trio.CancelScope) -> types.CodeType | None:
    """The code that has the scope on its stack: this one, or that of a context manager on it."""
    seen: set[int] = set()
    found = deque((referent, code, 0) for referent in gc.get_referents(awaited))
    while found and len(seen) < _MANY:
        current, code, far = found.popleft()
        if current is scope:
            return code
        if id(current) in seen or far == _FAR:
            continue
        seen.add(id(current))
        if isinstance(current, types.MethodType) and current.__name__ in _EXITS:
            found.append((current.__self__, code, far + 1))
            continue
        if far and isinstance(current, types.GeneratorType):
            code = current.gi_code
        elif far and isinstance(current, types.AsyncGeneratorType):
            code = current.ag_code
        elif not isinstance(current, _MANAGERS) and not (far and isinstance(current, _INNER)):
            continue
        found.extend((referent, code, far + 1) for referent in gc.get_referents(current))
    return None
