"""The field tables of the generated messages, and the record that stands for each message.

This is the only place that knows where betterproto2 keeps its tables (they are private to it,
hence the narrow version range in pyproject.toml).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields, replace
from typing import Any

from .. import records
from .._record import Record
from ..generated.google import protobuf
from ..generated.sepp import v1

# Their records are plain tuples of the message's fields, in the order of their numbers.
TUPLES = {"Timestamp", "Duration", "Empty"}

# What a field holds: the types of the contract. A type that is not here stops the compiler.
SCALARS = {
    "string": "str",
    "bytes": "bytes",
    "bool": "bool",
    "double": "float",
    "int32": "int",
    "int64": "int",
    "uint32": "int",
    "uint64": "int",
    "enum": "int",
}

RAW_LIST = "list[bytes | Slice]"


@dataclass(frozen=True, slots=True)
class FieldTable:
    """One field of a message.

    `type` is the protobuf type, "message" or "map"; `message` the name of the message that it
    holds, in a map that of its entries, whose values are `map_value`. `raw` fields stay undecoded
    in the record.
    """

    name: str
    number: int
    type: str
    optional: bool = False
    repeated: bool = False
    oneof: str | None = None
    message: str | None = None
    map_value: str | None = None
    raw: bool = False


@dataclass(frozen=True, slots=True)
class MessageTable:
    """A message: its fields in the order of their numbers, and its record (None: a tuple)."""

    name: str
    record: type[Record] | None
    fields: tuple[FieldTable, ...]


def all_tables() -> list[MessageTable]:
    """The tables of all messages and of the parts that they need, by name."""
    messages = [name for name in v1.__all__ if hasattr(getattr(v1, name), "_betterproto")]
    waiting = sorted(messages, reverse=True)
    tables: dict[str, MessageTable] = {}
    while waiting:
        if (name := waiting.pop()) in tables:
            continue
        tables[name] = table = message_table(name)
        for field in table.fields:
            if field.type == "map" and field.raw:
                waiting.append(f"{name}_{field.name}")
            waiting += [held for held in (field.message, field.map_value) if held is not None]
    return [tables[name] for name in sorted(tables)]


@functools.cache
def message_table(name: str) -> MessageTable:
    """The table of the message called `name`.

    Besides the messages of the contract there are, for a map field, `Message_field_entry`
    (the tuple of key and value) and `Message_field` (the tuple of the map alone, in the form
    that a raw field of a record holds).

    Raises:
        LookupError: there is no such message.
        TypeError: the record and the message do not fit: the contract was changed without its
            records, or uses what the codec compiler has no code for.
    """
    if "_" in name:
        return _map_table(*name.split("_", 1))
    meta = _meta(name)
    record = None if name in TUPLES else getattr(records, name)
    declared = {} if record is None else {f.name: str(f.type) for f in fields(record)}
    if record is not None and tuple(declared) != meta.sorted_field_names:
        raise TypeError(f"the fields of record {name} are not those of the message, in its order")
    table = tuple(
        _field_table(name, field, meta, declared.get(field)) for field in meta.sorted_field_names
    )
    return MessageTable(name, record, table)


def _map_table(message: str, field: str) -> MessageTable:
    """Of a map field, or of its entries."""
    name = f"{message}_{field}"
    if field.endswith("_entry"):
        field = field.removesuffix("_entry")
        meta = _meta(message)
        key, value = meta.meta_by_field_name[field].map_meta
        held = meta.cls_by_field[f"{field}.value"].__name__
        entry = (
            # Both parts are written whatever they are, and None is what says: missing.
            FieldTable("key", key.number, key.proto_type, optional=True),
            FieldTable("value", value.number, value.proto_type, optional=True, message=held),
        )
        return MessageTable(name, None, entry)
    (found,) = (f for f in message_table(message).fields if f.name == field)
    return MessageTable(name, None, (replace(found, raw=False),))


def _field_table(message: str, name: str, meta: Any, declared: str | None) -> FieldTable:
    """Read one field; refuse what there is no code for and what its record declares otherwise."""
    where = f"{message}.{name}"
    field = meta.meta_by_field_name[name]
    held = map_value = None
    raw = declared in ("bytes", "bytes | None", RAW_LIST)
    if field.proto_type == "map":
        if tuple(part.proto_type for part in field.map_meta) != ("string", "message"):
            raise TypeError(f"{where}: no codec for maps other than from string to message")
        held, map_value = f"{message}_{name}_entry", meta.cls_by_field[f"{name}.value"].__name__
        expected = "bytes" if raw else f"dict[str, {map_value}]"
    elif field.proto_type == "message":
        held = (field.unwrap() if field.unwrap else meta.cls_by_field[name]).__name__
        expected = "bytes" if raw else held
    elif field.proto_type in SCALARS and not (field.repeated and field.proto_type != "string"):
        expected = SCALARS[field.proto_type]
        raw = False
    else:
        raise TypeError(f"{where}: no codec for {'repeated ' * field.repeated}{field.proto_type}")
    if field.repeated:
        expected = RAW_LIST if raw else f"list[{expected}]"
    elif field.optional:
        expected += " | None"
    if declared is not None and declared != expected:
        raise TypeError(f"{where}: the record declares {declared}, the message needs {expected}")
    return FieldTable(
        name=name,
        number=field.number,
        type=field.proto_type,
        optional=bool(field.optional),
        repeated=bool(field.repeated),
        oneof=field.group,
        message=held,
        map_value=map_value,
        raw=raw,
    )


def _meta(name: str) -> Any:
    """betterproto2's own table of a message."""
    for module in (v1, protobuf):
        if name in module.__all__:
            return getattr(module, name)._betterproto
    raise LookupError(f"no message {name} in the contract")
