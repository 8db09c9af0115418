"""What all values share, written once.

A dataclass compiles its own methods for each class, which for this many classes takes several
milliseconds of import. So values are ``@dataclass(frozen=True, slots=True, eq=False,
repr=False)`` and inherit from here what those two would have made.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any


class Value:
    """Base of frozen dataclasses: equality, hash and repr by their fields."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        names = [item.name for item in fields(self) if item.compare]  # type: ignore[arg-type]
        return _values(self, names) == _values(other, names)

    def __hash__(self) -> int:
        hashed = [
            item.name
            for item in fields(self)  # type: ignore[arg-type]
            if (item.compare if item.hash is None else item.hash)
        ]
        return hash(_values(self, hashed))

    def __repr__(self) -> str:
        shown = [f"{item.name}={getattr(self, item.name)!r}" for item in fields(self) if item.repr]  # type: ignore[arg-type]
        return f"{type(self).__qualname__}({', '.join(shown)})"


def _values(value: object, names: list[str]) -> tuple[Any, ...]:
    return tuple([getattr(value, name) for name in names])
