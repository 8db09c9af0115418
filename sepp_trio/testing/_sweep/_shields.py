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
_INNER: Final = (types.GeneratorType, types.AsyncGeneratorType, dict, deque, tuple)
"""What managers keep their parts in."""


def opened_by_own_code(scope: trio.CancelScope, task: trio.lowlevel.Task, own: OwnCode) -> bool:
    """Whether own code has opened the scope: the outermost function, of the task or those above
    it, that has it on its stack. The interpreter keeps what a ``with`` has entered there."""
    holder: types.CodeType | None = None
    current: trio.lowlevel.Task | None = task
    while current is not None:
        for awaited, code in _awaited(current.coro):
            if _holds(awaited, scope):
                holder = code
                break
        nursery = current.parent_nursery
        current = None if nursery is None else nursery.parent_task
    return holder is not None and own.owns(holder)


def _awaited(awaited: Any) -> Iterator[tuple[Any, types.CodeType]]:
    """A coroutine, what it awaits, what that awaits, and so on."""
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


def _holds(awaited: Any, scope: trio.CancelScope) -> bool:
    """Whether the scope is on its stack: itself, or within a context manager."""
    seen: set[int] = set()
    found = deque((referent, 0) for referent in gc.get_referents(awaited))
    while found and len(seen) < _MANY:
        current, far = found.popleft()
        if current is scope:
            return True
        if id(current) in seen or far == _FAR:
            continue
        seen.add(id(current))
        if isinstance(current, types.MethodType) and current.__name__ in _EXITS:
            found.append((current.__self__, far + 1))
        elif isinstance(current, _MANAGERS) or (far and isinstance(current, _INNER)):
            found.extend((referent, far + 1) for referent in gc.get_referents(current))
    return False
