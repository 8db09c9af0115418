"""Reading the TOML file of the configuration: shapes only, the values are judged elsewhere."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from sepp_trio.errors import ConfigError

T = TypeVar("T")

# Keys of [storage] that the real server has and this one has no use for: a file that the real
# server refuses is refused here as well.
_UNUSED = ("sweep_interval_ms", "command_queue_capacity")


def load(path: str | os.PathLike[str]) -> Mapping[str, object]:
    """Parse the file.

    :raises ConfigError: it cannot be read, or is no TOML; names the path.
    """
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(name, f"cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(name, f"is not valid TOML: {error}") from error


def section(document: Mapping[str, object], name: str) -> Mapping[str, object]:
    """A table of the file, empty if it is not there."""
    value = document.get(name, {})
    if not isinstance(value, Mapping):
        raise ConfigError(name, f"must be a table, not {value!r}")
    return value


def tables(
    parent: Mapping[str, object], name: str, key: str
) -> Sequence[Mapping[str, object]] | None:
    """A list of tables; ``None`` if it is not there."""
    value = parent.get(name)
    if value is None:
        return None
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ConfigError(key, f"must be a list of tables, not {value!r}")
    for item in value:
        if not isinstance(item, Mapping):
            raise ConfigError(key, f"must be a list of tables, but has {item!r}")
    return value


def build(cls: type[T], values: Mapping[str, object]) -> T:
    """Make a section of those values that it knows."""
    known = {item.name for item in fields(cls)}  # type: ignore[arg-type]
    kept: dict[str, Any] = {name: value for name, value in values.items() if name in known}
    for name, value in kept.items():
        if isinstance(value, list):
            kept[name] = tuple(value)
    return cls(**kept)


def check_unused(storage: Mapping[str, object]) -> None:
    """Check the keys that are read but have no effect here."""
    for name in _UNUSED:
        value = storage.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"storage.{name}", f"must be a whole number from 1, not {value!r}")
