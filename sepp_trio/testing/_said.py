"""What functions of the user's say: a test must not pass because of what they forgot to say."""

from __future__ import annotations

import inspect
from typing import Final

_MEANT: Final = "has to say whether it holds, by True or False"


def holds(answer: object, name: str) -> bool:
    """What a predicate means by its answer.

    Raises:
        TypeError: it means nothing; names the predicate.
    """
    refuse_async(answer, name)
    refuse_function(answer, name)
    if answer is None:
        raise TypeError(f"{name} returned None: it {_MEANT}")
    return bool(answer)


def refuse_async(answer: object, name: str) -> None:
    """What is called where nothing can be awaited must not be async."""
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()  # it is told of here, and not when it is collected
        raise TypeError(f"{name} must not be async")


def refuse_function(answer: object, name: str) -> None:
    """A function is no answer: somebody forgot to call it."""
    if inspect.isroutine(answer):
        called = getattr(answer, "__qualname__", repr(answer))
        raise TypeError(f"{name} returned the function {called}, and has not called it")
