"""Writes, for one message, the Python source of its encoder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .._primitives import BYTES, FIXED64, VARINT, varint
from ._tables import FieldTable, MessageTable

# Types whose encoder is a function of _primitives.
INTEGERS = {
    "uint32": "unsigned32",
    "uint64": "unsigned64",
    "int32": "signed32",
    "int64": "signed64",
    "enum": "signed32",
}


def encoder(table: MessageTable) -> Iterator[str]:
    """The lines of ``encode_NAME(record)``."""
    yield f"def encode_{table.name}(record):"
    yield "    w = []"
    yield "    try:"
    yield "        field = ''"
    if table.record is None:
        yield f"        ({''.join(f'{field.name}_, ' for field in table.fields)}) = record"
    for field in table.fields:
        value = f"{field.name}_" if table.record is None else f"record.{field.name}"
        yield f"        field = {field.name!r}"
        yield f"        v = {value}"
        yield from indent(_encode_field(field), 2)
    yield "    except EncodeError:"
    yield "        raise"
    yield "    except Exception as error:"
    yield f"        raise encode_error({table.name!r}, field, error) from None"
    yield "    return b''.join(w)"
    yield ""


def _encode_field(field: FieldTable) -> Iterator[str]:
    tag = varint(tag_of(field))
    if field.type == "map" and field.raw:
        yield "if v: w.append(v)"
        return
    if field.type == "map":
        yield "for v in v.items():"
    elif field.repeated:
        yield "for v in v:"
    elif field.optional:
        yield "if v is not None:"
    else:
        yield "if v:"
    yield from indent(_encode_value(field, tag))


def _encode_value(field: FieldTable, tag: bytes) -> Iterator[str]:
    if field.type == "bool":
        yield f"w.append({tag + varint(1)!r} if v else {tag + varint(0)!r})"
    elif field.type == "double":
        yield f"w += {tag!r}, pack_double(v)"
    elif field.type in INTEGERS:
        yield f"w += {tag!r}, SMALL[v] if 0 <= v < 128 else {INTEGERS[field.type]}(v)"
    else:
        if field.type == "string":
            yield "v = v.encode()"
        elif field.message is not None and not field.raw:
            yield f"v = encode_{field.message}(v)"
        elif field.raw and field.repeated:
            yield "if v.__class__ is not bytes: v = bytes(v)"
        yield "n = len(v)"
        yield f"w += {tag!r}, SMALL[n] if n < 128 else varint(n), v"


def tag_of(field: FieldTable) -> int:
    """Number and wire type of a field, as on the wire."""
    if field.type == "double":
        wire_type = FIXED64
    elif field.type in INTEGERS or field.type == "bool":
        wire_type = VARINT
    else:
        wire_type = BYTES
    return field.number << 3 | wire_type


def indent(lines: Iterable[str], depth: int = 1) -> Iterator[str]:
    """Lines of code, so many levels deeper."""
    return ("    " * depth + line for line in lines)
