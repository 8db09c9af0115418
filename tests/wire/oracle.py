"""google.protobuf as the judge: sepp-py's published messages beside our records.

Both are turned into the same plain structure, `Meaning`, so that they can be compared: a dict of
the fields, with None for what is absent.
"""

from __future__ import annotations

import functools
import struct
from typing import Any, TypeAlias

from google.protobuf import message as protobuf
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.unknown_fields import UnknownFieldSet
from hypothesis import strategies as st
from sepp.v1 import queue_pb2

from sepp_trio.wire import (
    Record,
    custom_of,
    decode,
    encode,
    encode_custom,
    encode_trace_context,
    records,
    trace_context_of,
)

Meaning: TypeAlias = dict[str, Any]

DESCRIPTORS = queue_pb2.DESCRIPTOR.message_types_by_name
NAMES = sorted(DESCRIPTORS)

# Tuples on our side, messages of google.protobuf on the other.
TUPLES = {"Timestamp", "Duration", "Empty"}

RAW_LISTS = {
    ("ReserveResponse", "jobs"): records.Job,
    ("DrainDeadLettersResponse", "records"): records.DeadLetterRecord,
}


def record_class(name: str) -> type[Record]:
    """Our record."""
    found: type[Record] = getattr(records, name)
    return found


def judge_class(name: str) -> type[protobuf.Message]:
    """The oracle's class of the same message."""
    found: type[protobuf.Message] = getattr(queue_pb2, name)
    return found


def meaning_of_message(message: protobuf.Message) -> Any:
    """What the oracle read."""
    descriptor = message.DESCRIPTOR
    if descriptor.name in TUPLES:
        return tuple(getattr(message, field.name) for field in descriptor.fields)
    return {field.name: _meaning_of_field(message, field) for field in descriptor.fields}


def _meaning_of_field(message: Any, field: FieldDescriptor) -> Any:
    value = getattr(message, field.name)
    if is_map(field):
        return {key: meaning_of_message(held) for key, held in value.items()}
    if field.is_repeated:
        return [meaning_of_message(held) if field.message_type else held for held in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return meaning_of_message(value) if field.message_type else _comparable(value)


def dropped_an_entry(message: Any) -> bool:
    """Whether the oracle counts an entry of a map as unknown: one with unknown fields in it."""
    numbers = {field.number for field in message.DESCRIPTOR.fields if is_map(field)}
    if any(unknown.field_number in numbers for unknown in UnknownFieldSet(message)):
        return True
    held: list[Any] = []
    for field, value in message.ListFields():
        if is_map(field):
            held += value.values()
        elif field.message_type:
            held += value if field.is_repeated else [value]
    return any(map(dropped_an_entry, held))


def meaning_of_record(record: Any) -> Any:
    """What we read, with everything decoded that the record keeps raw."""
    if isinstance(record, tuple):
        return record
    fields: Meaning = {}
    for name in record.__match_args__:
        value = getattr(record, name)
        cls = type(record)
        if cls is records.Job and name == "custom":
            value = custom_of(record)
        elif cls is records.Job and name == "trace_context":
            value = trace_context_of(record)
        elif (held := RAW_LISTS.get((cls.__name__, name))) is not None:
            value = [decode(held, raw) for raw in value]
        if isinstance(value, list):
            fields[name] = [meaning_of_record(v) if isinstance(v, Record) else v for v in value]
        elif isinstance(value, dict):
            fields[name] = {key: meaning_of_record(held) for key, held in value.items()}
        elif isinstance(value, Record):
            fields[name] = meaning_of_record(value)
        else:
            fields[name] = _comparable(value)
    return fields


def _comparable(value: Any) -> Any:
    # Bit by bit, because NaN differs from itself, and 0.0 equals -0.0 and False.
    if isinstance(value, float):
        return struct.pack("<d", value)
    return (type(value).__name__, value) if isinstance(value, bool) else value


def message_of(name: str, meaning: Meaning) -> Any:
    """The oracle's message of plain values (as `values_of` draws them)."""
    message = judge_class(name)()
    _fill(message, meaning)
    return message


def _fill(message: Any, meaning: Any) -> None:
    if isinstance(meaning, tuple):
        message.SetInParent()
        for field, value in zip(message.DESCRIPTOR.fields, meaning, strict=True):
            setattr(message, field.name, value)
        return
    message.SetInParent()
    for field in message.DESCRIPTOR.fields:
        value = meaning[field.name]
        held = getattr(message, field.name)
        if is_map(field):
            for key, entry in value.items():
                _fill(held[key], entry)
        elif field.is_repeated:
            for entry in value:
                if field.message_type:
                    _fill(held.add(), entry)
                else:
                    held.append(entry)
        elif value is not None and field.message_type:
            _fill(held, value)
        elif value is not None:
            setattr(message, field.name, value)


def record_of(name: str, meaning: Any) -> Any:
    """Our record of plain values."""
    if isinstance(meaning, tuple):
        return meaning
    arguments: dict[str, Any] = {}
    for field in DESCRIPTORS[name].fields:
        value = meaning[field.name]
        if is_map(field):
            kind = field.message_type.fields_by_name["value"].message_type.name
            value = {key: record_of(kind, entry) for key, entry in value.items()}
            if name == "Job":
                value = encode_custom(value)
        elif field.message_type and field.is_repeated:
            value = [record_of(field.message_type.name, entry) for entry in value]
            if (name, field.name) in RAW_LISTS:
                value = [encode(entry) for entry in value]
        elif field.message_type and value is not None:
            value = record_of(field.message_type.name, value)
            if (name, field.name) == ("Job", "trace_context"):
                value = encode_trace_context(value)
        arguments[field.name] = value
    return record_class(name)(**arguments)


def is_map(field: FieldDescriptor) -> bool:
    """Whether a field is a map."""
    return bool(field.message_type and field.message_type.GetOptions().map_entry)


# ---- Strategies ----

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_SCALARS = {
    FieldDescriptor.TYPE_STRING: st.one_of(TEXTS, st.just(""), st.just("x" * 300)),
    FieldDescriptor.TYPE_BYTES: st.one_of(st.binary(max_size=20), st.binary(max_size=300)),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_DOUBLE: st.floats(),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_ENUM: st.one_of(st.integers(0, 5), st.integers(-(2**31), 2**31 - 1)),
}


@functools.cache
def values_of(name: str, *, plain_times: bool = False) -> st.SearchStrategy[Any]:
    """Valid values of a message; at most one member of a oneof is set.

    `plain_times` are those that betterproto2 can hold: whole microseconds, none far away.
    """
    return _values_of(DESCRIPTORS[name], plain_times)


def _values_of(descriptor: Any, plain_times: bool) -> st.SearchStrategy[Any]:
    if descriptor.name in ("Timestamp", "Duration") and plain_times:
        return st.tuples(
            st.integers(0, 2**33), st.integers(0, 999_999).map(lambda micros: micros * 1000)
        )
    if descriptor.name in TUPLES:
        return st.tuples(*(_SCALARS[field.type] for field in descriptor.fields))
    return st.builds(
        _one_member,
        st.just(descriptor),
        st.fixed_dictionaries(
            {field.name: _values(field, plain_times) for field in descriptor.fields}
        ),
        st.integers(0, 20),
    )


def _one_member(descriptor: Any, meaning: Meaning, choice: int) -> Meaning:
    for oneof in descriptor.oneofs:
        if len(oneof.fields) == 1:  # an optional field is a oneof of its own to a descriptor
            continue
        kept = choice % (len(oneof.fields) + 1)
        for index, field in enumerate(oneof.fields):
            if index != kept:
                meaning = {**meaning, field.name: None}
    return meaning


def _values(field: FieldDescriptor, plain_times: bool) -> st.SearchStrategy[Any]:
    if is_map(field):
        value = field.message_type.fields_by_name["value"].message_type
        return st.dictionaries(TEXTS, _values_of(value, plain_times), max_size=3)
    held = (
        _values_of(field.message_type, plain_times) if field.message_type else _SCALARS[field.type]
    )
    if field.is_repeated:
        return st.lists(held, max_size=3)
    return st.none() | held if field.has_presence else held
