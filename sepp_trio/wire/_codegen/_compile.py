"""Writes, for one message, the Python source of its encoder and decoder.

Both are straight code for exactly the fields of that message, in the order of their numbers, as
attrs and dataclasses write the methods of a class: a general parser that looks every field up in
a table costs ten times as much.

Meaning is google.protobuf's, which the tests compare with: the last value of a field wins, the
parts of a message that comes twice are merged, setting one member of a oneof unsets the others,
numbers are cut to their width. Where the real server judges otherwise it is right, and the tests
compare with it as well. So these are refused although google.protobuf takes them:

* a known field with another wire type (to google.protobuf an unknown field; the real server
  refuses it in all fields but maps, whose entries it reads whatever the type is);
* a number of more than 64 bits: a tenth byte over 1;
* fields with the number 0 inside groups, and in a message that has no fields;

and these are read although google.protobuf does not:

* tags and lengths of more than five bytes, if their value has 32 bits;
* an entry of a map that has unknown fields besides its key and value (google.protobuf drops it).

Of our own are two limits: groups nested deeper than `_primitives.MAX_GROUPS` are refused, and
the content of raw fields is not looked at, only its length.
"""

from __future__ import annotations

from collections.abc import Iterator

from .._primitives import varint
from ._encoder import encoder, indent, tag_of
from ._tables import FieldTable, MessageTable

# What decoding does to a long varint.
NARROW = {
    "uint32": ["v &= 0xFFFFFFFF"],
    "uint64": [],
    "int32": ["v = (v & 0xFFFFFFFF ^ 0x80000000) - 0x80000000"],
    "int64": ["v = (v ^ 0x8000000000000000) - 0x8000000000000000"],
    "enum": ["v = (v & 0xFFFFFFFF ^ 0x80000000) - 0x80000000"],
    "bool": [],
}
# Messages that come again and again (the jobs of one answer end their leases together), with the
# most bytes that a written one has: decoded ones are remembered by their bytes.
REMEMBERED = {"Timestamp": 17}
# Messages that come in crowds which differ in their first fields only, up to the named one (jobs
# that were enqueued together and leased together): what follows is remembered by its bytes.
SHARED_AFTER = {"Job": "payload"}
LONGEST_SHARED = 256
# A raw field of a list that is as long as this is not copied.
LEAST_SLICE = 4096
MOST_SHARED = 256
DEFAULTS = {"string": "''", "bytes": "b''", "bool": "False"}


def codec_source(table: MessageTable) -> str:
    """The source of ``encode_NAME(record)`` and ``decode_NAME(data, pos=0, end=None, into=None)``.

    ``decode_NAME`` reads the message between two offsets of `data` and merges it into the record
    `into` (None: a new one), which it may use up. Without `end` it reads all of `data`, which may
    be any bytes-like object or a `Slice` then. Names of a field become local variables with an
    underscore behind them, so that they meet no other name.
    """
    return "\n".join([*encoder(table), *_decoder(table)])


# One turn of a decoder's loop takes the fields in order, so that each is compared once in a
# message that is written in order. `tag` is its first byte until it turns out, at the end of the
# turn, that no field has it: one of several bytes is then read in full and gets 128 more than its
# value, which no first byte can be.


def _decoder(table: MessageTable) -> Iterator[str]:
    known = {_compared_tag(field): field.name for field in table.fields}
    yield f"known_{table.name} = {known!r}"
    yield f"fields_{table.name} = { {field.number: field.name for field in table.fields}!r}"
    shared = SHARED_AFTER.get(table.name)
    if shared is not None:
        yield f"shared_{table.name} = {{}}"
    yield f"def decode_{table.name}(data, pos=0, end=None, into=None):"
    yield "    if end is None:"
    yield "        if data.__class__ is bytes:"
    yield "            end = len(data)"
    yield from indent(_single_string(table), 3)
    yield "        elif data.__class__ is Slice:"
    yield "            pos, end, data = data.begin, data.end, data.data"
    yield "        else:"
    # Parts of anything else would end up in the record.
    yield "            data = bytes(data)"
    yield "            end = len(data)"
    yield from indent(_initial_values(table))
    if shared is not None:
        yield "    rest = None if into is None else b''"
    yield "    tag = 0"
    yield "    try:"
    yield "        if pos < end:"
    yield "            tag = data[pos]"
    yield "            pos += 1"
    yield "            while True:"
    for field in table.fields:
        yield from indent(_decode_field(table, field), 4)
        if field.name == shared:
            yield from indent(_look_up_shared(table), 4)
    if shared is not None:
        yield "                rest = b''"
    yield f"                if tag in known_{table.name}: continue"
    yield "                if tag > 127:"
    yield "                    tag, pos = read_short(data, pos - 1)"
    yield "                    if tag > 127: tag += 128"
    yield f"                    if tag in known_{table.name}: continue"
    yield "                    if tag > 127: tag -= 128"
    if table.fields:
        yield f"                if tag >> 3 in fields_{table.name}:"
        yield "                    error = ValueError(f'a field of wire type {tag & 7}')"
        yield f"                    field = fields_{table.name}[tag >> 3]"
        yield f"                    raise decode_error({table.name!r}, field, error)"
    yield "                pos = skip(data, pos, tag)"
    yield from indent(_next_tag("break"), 4)
    yield "        if pos != end: raise ValueError(TRUNCATED)"
    yield "    except DecodeError:"
    yield "        raise"
    yield "    except (IndexError, ValueError) as error:"
    yield f"        field = known_{table.name}.get(tag)"
    yield f"        raise decode_error({table.name!r}, field, error) from None"
    if shared is not None:
        yield "    if rest:"
        yield f"        if len(shared_{table.name}) >= {MOST_SHARED}: shared_{table.name}.clear()"
        behind = "".join(f"{_final_value(field)}, " for field in _behind(table))
        yield f"        shared_{table.name}[rest] = ({behind})"
    yield from indent(_result(table))
    yield ""
    if table.name in REMEMBERED:
        yield f"remembered_{table.name} = lru_cache(128)(decode_{table.name})"
        yield ""


def _result(table: MessageTable) -> Iterator[str]:
    if table.record is None:
        yield f"return ({''.join(f'{_final_value(field)}, ' for field in table.fields)})"
        return
    # To call the class takes longer than to fill the record.
    yield f"record = new({table.name})"
    for field in table.fields:
        yield f"record.{field.name} = {_final_value(field)}"
    yield "return record"


def _single_string(table: MessageTable) -> Iterator[str]:
    """A way past the loop for messages that hold one short string and nothing else."""
    if len(table.fields) != 1 or table.record is None:
        return
    [field] = table.fields
    tag = tag_of(field)
    if field.type != "string" or field.optional or field.repeated or tag > 127:
        return
    yield f"if 2 < end < 130 and data[1] == end - 2 and data[0] == {tag}:"
    yield "    try:"
    yield f"        record = new({table.name})"
    yield f"        record.{field.name} = data[2:].decode()"
    yield "        return record"
    yield "    except ValueError: pass"


def _behind(table: MessageTable) -> tuple[FieldTable, ...]:
    """The fields that are remembered together."""
    names = [field.name for field in table.fields]
    return table.fields[names.index(SHARED_AFTER[table.name]) + 1 :]


def _look_up_shared(table: MessageTable) -> Iterator[str]:
    # Only in the first turn, when no field behind can have been seen. What turns out to need
    # another turn is not remembered.
    yield "if rest is None:"
    yield f"    rest = data[pos - 1:end] if end - pos < {LONGEST_SHARED} else b''"
    yield f"    v = shared_{table.name}.get(rest)"
    yield "    if v is not None:"
    yield f"        record = new({table.name})"
    behind = [f"record.{field.name}" for field in _behind(table)]
    for field in table.fields:
        if f"record.{field.name}" not in behind:
            yield f"        record.{field.name} = {field.name}_"
    yield f"        {', '.join(behind)} = v"
    yield "        return record"


def _compared_tag(field: FieldTable) -> int:
    tag = tag_of(field)
    return tag if tag < 128 else tag + 128


def _next_tag(at_end: str) -> Iterator[str]:
    yield f"if pos >= end: {at_end}"
    yield "tag = data[pos]"
    yield "pos += 1"


def _initial_values(table: MessageTable) -> Iterator[str]:
    if not table.fields:
        return
    yield "if into is None:"
    for field in table.fields:
        yield f"    {field.name}_ = {_default(field)}"
    yield "else:"
    if table.record is None:
        yield f"    ({''.join(f'{field.name}_, ' for field in table.fields)}) = into"
    for field in table.fields:
        value = f"into.{field.name}"
        if field.raw and field.type == "map":
            yield f"    {field.name}_ = [{value}]"
        elif table.record is not None:
            yield f"    {field.name}_ = {value}"


def _default(field: FieldTable) -> str:
    if field.optional:
        return "None"
    if field.repeated or field.raw:
        return "[]"
    return "{}" if field.type == "map" else DEFAULTS.get(field.type, "0")


def _final_value(field: FieldTable) -> str:
    name = f"{field.name}_"
    return f"b''.join({name})" if field.raw and field.type == "map" else name


def _decode_field(table: MessageTable, field: FieldTable) -> Iterator[str]:
    several = field.repeated or field.type == "map"
    yield f"{'while' if several else 'if'} tag == {_compared_tag(field)}:"
    yield from indent(_decode_value(field))
    if field.oneof is not None:
        others = [
            other.name for other in table.fields if other.oneof == field.oneof and other != field
        ]
        yield f"    {''.join(f'{name}_ = ' for name in others)}None"
    if several:
        yield from indent(_next_tag("tag = -1; break"))
        yield "if tag < 0: break"
    else:
        yield from indent(_next_tag("break"))


def _decode_value(field: FieldTable) -> Iterator[str]:
    name = f"{field.name}_"
    if field.type == "double":
        yield "pos += 8"
        yield "if pos > end: raise ValueError(TRUNCATED)"
        yield f"{name} = unpack_double(data, pos - 8)[0]"
    elif field.type in NARROW:
        yield "v = data[pos]"
        yield "pos += 1"
        yield "if v > 127:"
        yield "    v, pos = read_varint(data, pos - 1)"
        yield from indent(NARROW[field.type])
        yield f"{name} = {'v != 0' if field.type == 'bool' else 'v'}"
    else:
        yield "begin = pos"
        yield "n = data[pos]"
        yield "pos += 1"
        yield "if n > 127:"
        # Lengths of two bytes are usual: to call a function for them costs more than the rest.
        yield "    v = data[pos]"
        yield "    if v < 128: n += (v << 7) - 128; pos += 1"
        yield "    else: n, pos = read_short(data, begin)"
        yield "start = pos"
        yield "pos += n"
        yield "if pos > end: raise ValueError(TRUNCATED)"
        yield from _decode_content(field, name)


def _decode_content(field: FieldTable, name: str) -> Iterator[str]:
    if field.type == "map" and field.raw:
        yield f"{name} += {varint(tag_of(field))!r}, data[begin:pos]"
    elif field.type == "map":
        yield f"k, v = decode_{field.message}(data, start, pos, None)"
        yield f"{name}[k or ''] = v or {field.map_value}()"
    elif field.message in REMEMBERED and not field.repeated:
        yield f"if {name} is None and n <= {REMEMBERED[field.message]}:"
        yield f"    {name} = remembered_{field.message}(data[start:pos])"
        yield "else:"
        yield f"    {name} = decode_{field.message}(data, start, pos, {name})"
    elif field.type == "message" and not field.raw:
        into = "None" if field.repeated else name
        yield from _keep(field, name, f"decode_{field.message}(data, start, pos, {into})")
    elif field.type == "string":
        yield from _keep(field, name, "data[start:pos].decode()")
    elif field.raw and not field.repeated:
        yield "v = data[start:pos]"
        codec = f"encode_{field.message}, decode_{field.message}"
        yield f"{name} = v if {name} is None else merge({codec}, {name}, v)"
    elif field.raw:
        yield f"{name}.append(data[start:pos] if n < {LEAST_SLICE} else Slice(data, start, pos))"
    else:
        yield from _keep(field, name, "data[start:pos]")


def _keep(field: FieldTable, name: str, value: str) -> Iterator[str]:
    yield f"{name}.append({value})" if field.repeated else f"{name} = {value}"
