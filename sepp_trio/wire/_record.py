"""What all records share: slots, a constructor by keyword, equality and a short repr."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, TypeVar, dataclass_transform

T = TypeVar("T", bound="Record")


class Record:
    """Base of the records. Two are equal if they are of one class and all fields are.

    Written out once here because a dataclass compiles its own methods for each class, which
    for this many classes takes several milliseconds of import. Only the constructor is each
    class's own: it is compiled when the first record of the class is made.
    """

    __slots__ = ()
    __match_args__: ClassVar[tuple[str, ...]] = ()
    __hash__ = None  # type: ignore[assignment]  # mutable, and equal by content

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        cls = type(self)
        cls.__init__ = _constructor(cls)  # type: ignore[method-assign]
        cls.__init__(self, *args, **kwargs)

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


def _constructor(cls: type[Record]) -> Callable[..., None]:
    """What a dataclass would have compiled; every field of a record has a default."""
    known: dict[str, Any] = {"missing": MISSING}
    arguments, body = [], []
    for item in fields(cls):  # type: ignore[arg-type]
        name = item.name
        if item.default_factory is MISSING:
            known[f"default_{name}"] = item.default
            arguments.append(f"{name}=default_{name}")
            body.append(f"    self.{name} = {name}")
        else:
            known[f"make_{name}"] = item.default_factory
            arguments.append(f"{name}=missing")
            body.append(f"    self.{name} = make_{name}() if {name} is missing else {name}")
    lines = [f"def __init__(self, {', '.join(arguments)}):", *body, "    return"]
    exec("\n".join(lines), known)
    constructor: Callable[..., None] = known["__init__"]
    constructor.__qualname__ = f"{cls.__qualname__}.__init__"
    return constructor


@dataclass_transform(field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """Make a class a record: a dataclass with slots."""
    return dataclass(slots=True, eq=False, repr=False, init=False)(cls)
