"""What the strategies have in common: pinned fields, bounded texts, the server's limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias, TypeVar

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from sepp_trio.broker import BrokerConfig

T = TypeVar("T")

Drawn: TypeAlias = T | st.SearchStrategy[T]
"""A value, or a strategy that draws one."""

LIMITS: Final = BrokerConfig().limits
"""Those of a server whose configuration sets none."""


def as_strategy(field: Drawn[T]) -> st.SearchStrategy[T]:
    """The strategy of a field: a value that is given is always drawn."""
    return field if isinstance(field, st.SearchStrategy) else st.just(field)


def as_strategies(
    fields: Mapping[str, Any], known: type, function: str
) -> dict[str, st.SearchStrategy[Any]]:
    """The strategies of the fields that a caller has given.

    Raises:
        TypeError: there is no such field.
    """
    for name in fields:
        if name not in known.__annotations__:
            names = ", ".join(known.__annotations__)
            raise TypeError(f"{function}() has no field {name!r}; it has {names}")
    return {name: as_strategy(value) for name, value in fields.items()}


def texts(
    *, max_bytes: int, min_size: int = 1, alphabet: st.SearchStrategy[str] | None = None
) -> st.SearchStrategy[str]:
    """Texts of at most so many bytes of UTF-8."""
    characters = st.characters(codec="utf-8") if alphabet is None else alphabet
    drawn = st.text(characters, min_size=min_size, max_size=max_bytes)
    return drawn.filter(lambda text: len(text.encode()) <= max_bytes)


def check_bound(value: int, name: str, minimum: int, maximum: int | None = None) -> None:
    """Refuse a bound as Hypothesis does, when the strategy is made."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(f"{name} must be an int, not {value!r}")
    if value < minimum or (maximum is not None and value > maximum):
        limit = f"at least {minimum}" if maximum is None else f"between {minimum} and {maximum}"
        raise InvalidArgument(f"{name} must be {limit}, not {value}")
