"""What all records share: slots, a constructor by keyword, equality and a short repr."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, TypeVar, dataclass_transform

T = TypeVar("T", bound="Record")


class Record:
    """Base of the records. Two are equal if they are of one class and all fields are.

    Written out once here because a dataclass compiles its own methods for each class, which
    for this many classes takes several milliseconds of import.
    """

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]] = ()
    __hash__ = None  # type: ignore[assignment]  # mutable, and equal by content

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.__match_args__)

    def __repr__(self) -> str:
        shown = [
            f"{name}={value!r}"
            for name in self.__match_args__
            if (value := getattr(self, name)) is not None
        ]
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass_transform(field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """Make a class a record: a dataclass with slots."""
    return dataclass(slots=True, eq=False, repr=False)(cls)
