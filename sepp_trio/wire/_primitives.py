"""The parts of the wire format that the compiled codecs call: varints, and fields to skip.

Positions are offsets into `data`. A function may return a position beyond the end of the message
it is in (the caller compares) and raises IndexError beyond the end of `data`; what is malformed
in itself is a ValueError that says how.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

# The one-byte varints, by value.
SMALL = tuple(bytes([value]) for value in range(128))

UINT32_MAX = 2**32 - 1
UINT64_MAX = 2**64 - 1

# Wire types: the low three bits of a tag.
VARINT, FIXED64, BYTES, GROUP, END_GROUP, FIXED32 = range(6)

# Unknown groups may be nested: so deep as fits into the innermost message of the contract where
# both google.protobuf and the real server end at a depth of 100. Nothing in it is a group.
MAX_GROUPS = 96

NUMBER_0 = "a field with number 0"


class Slice:
    """A part of a message that is not copied: decoders read it where it is.

    It keeps all of the message; ``bytes`` makes a copy of the part.
    """

    __slots__ = ("begin", "data", "end")
    __hash__ = None  # type: ignore[assignment]  # equal by content, as to bytes

    def __init__(self, data: bytes, begin: int, end: int) -> None:
        self.data = data
        self.begin = begin
        self.end = end

    def __len__(self) -> int:
        return self.end - self.begin

    def __bytes__(self) -> bytes:
        return self.data[self.begin : self.end]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (bytes, Slice)):
            return NotImplemented
        return bytes(self) == bytes(other)


def read_varint(data: bytes, pos: int) -> tuple[int, int]:
    """An unsigned 64-bit value of two or more bytes, and the position behind it."""
    # Spelled out up to five bytes: seconds and nanos of a time are that long.
    first = data[pos]
    second = data[pos + 1]
    if second < 128:
        return first + (second << 7) - 0x80, pos + 2
    third = data[pos + 2]
    if third < 128:
        return first + (second << 7) + (third << 14) - 0x4080, pos + 3
    fourth = data[pos + 3]
    if fourth < 128:
        return first + (second << 7) + (third << 14) + (fourth << 21) - 0x204080, pos + 4
    fifth = data[pos + 4]
    value = first + (second << 7) + (third << 14) + (fourth << 21) + (fifth << 28) - 0x10204080
    if fifth < 128:
        return value, pos + 5
    value -= 0x800000000
    for index in range(5, 10):
        byte = data[pos + index]
        value |= (byte & 127) << 7 * index
        if byte < 128:
            if value > UINT64_MAX:
                break
            return value, pos + index + 1
    raise ValueError("a number of more than 64 bits")


def read_short(data: bytes, pos: int) -> tuple[int, int]:
    """Like :func:`read_varint`, for tags and lengths: they have 32 bits."""
    value, behind = read_varint(data, pos)
    if value > UINT32_MAX:
        raise ValueError("a tag or length of more than 32 bits")
    return value, behind


def skip(data: bytes, pos: int, tag: int) -> int:
    """The position behind the value of an unknown field whose tag ends at `pos`."""
    return _skip_group(data, pos, tag) if tag & 7 == GROUP else _skip_value(data, pos, tag)


def _skip_value(data: bytes, pos: int, tag: int) -> int:
    if tag < 8:
        raise ValueError(NUMBER_0)
    wire_type = tag & 7
    if wire_type == VARINT:
        return pos + 1 if data[pos] < 128 else read_varint(data, pos)[1]
    if wire_type == BYTES:
        length = data[pos]
        pos += 1
        if length > 127:
            length, pos = read_short(data, pos - 1)
        return pos + length
    if wire_type == FIXED64:
        return pos + 8
    if wire_type == FIXED32:
        return pos + 4
    raise ValueError(f"a field of wire type {wire_type}")


def _skip_group(data: bytes, pos: int, tag: int) -> int:
    # A loop with a stack of its own, so that no input can exhaust Python's.
    open_groups: list[int] = []
    while True:
        wire_type = tag & 7
        if wire_type == GROUP:
            if tag < 8:
                raise ValueError(NUMBER_0)
            if len(open_groups) == MAX_GROUPS:
                raise ValueError(f"groups nested more than {MAX_GROUPS} deep")
            open_groups.append(tag)
        elif wire_type == END_GROUP:
            if open_groups.pop() + 1 != tag:
                raise ValueError("the end of a group that is not open")
            if not open_groups:
                return pos
        else:
            pos = _skip_value(data, pos, tag)
        tag = data[pos]
        pos += 1
        if tag > 127:
            tag, pos = read_short(data, pos - 1)


def merge(
    encode: Callable[[Any], bytes],
    decode: Callable[[bytes, int, int, Any], Any],
    first: bytes,
    second: bytes,
) -> bytes:
    """What two occurrences of an undecoded message mean together."""
    record = decode(first, 0, len(first), None)
    return encode(decode(second, 0, len(second), record))


def split_fields(data: bytes) -> Iterator[bytes]:
    """The fields of a message, each with its tag, up to the first that is malformed."""
    pos = 0
    try:
        while pos < len(data):
            begin = pos
            tag = data[pos]
            pos += 1
            if tag > 127:
                tag, pos = read_short(data, begin)
            pos = skip(data, pos, tag)
            if pos <= len(data):
                yield data[begin:pos]
    except (IndexError, ValueError):
        return


def varint(value: int) -> bytes:
    """An unsigned number of at most 64 bits, or a negative one of 64 bits in two's complement."""
    value &= UINT64_MAX
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def unsigned32(value: int) -> bytes:
    """A uint32 as a varint."""
    return _in_range(value, 0, UINT32_MAX)


def unsigned64(value: int) -> bytes:
    """A uint64 as a varint."""
    return _in_range(value, 0, UINT64_MAX)


def signed32(value: int) -> bytes:
    """An int32 or an enum number as a varint; negative ones take ten bytes."""
    return _in_range(value, -(2**31), 2**31 - 1)


def signed64(value: int) -> bytes:
    """An int64 as a varint."""
    return _in_range(value, -(2**63), 2**63 - 1)


def _in_range(value: int, minimum: int, maximum: int) -> bytes:
    if not minimum <= value <= maximum:
        raise ValueError(f"{value} is not between {minimum} and {maximum}")
    return varint(value)
