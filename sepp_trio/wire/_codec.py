"""Runs the compiled codecs: one encoder and one decoder per record class.

A codec is compiled when it is first asked for, together with those of the messages inside it, so
that a program pays only for the messages that it uses, and nothing at import.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeVar

from . import _primitives
from ._compile import codec_source
from ._errors import DecodeError, EncodeError
from ._record import Record
from ._tables import MessageTable, message_table

R = TypeVar("R", bound=Record)

TRUNCATED = "ends in the middle"


def encode(record: Record) -> bytes:
    """The message that `record` stands for.

    Raises:
        EncodeError: a field holds what the message cannot.
    """
    return encoder_of(type(record))(record)


def decode(cls: type[R], data: bytes) -> R:
    """Read `data` as the message that `cls` stands for.

    Raises:
        DecodeError: it is none.
    """
    return decoder_of(cls)(data)


def encoder_of(cls: type[R]) -> Callable[[R], bytes]:
    """The function that :func:`encode` uses for `cls`, for callers that use it often."""
    return part_encoder(cls.__name__)


def decoder_of(cls: type[R]) -> Callable[[bytes], R]:
    """The function that :func:`decode` uses for `cls`, for callers that use it often."""
    return part_decoder(cls.__name__)


def part_encoder(name: str) -> Callable[[Any], bytes]:
    """Encoder of the message called `name`; it may have no record (see :func:`message_table`)."""
    encoder: Callable[[Any], bytes] = _function("encode", name)
    return encoder


def part_decoder(name: str) -> Callable[[bytes], Any]:
    """Decoder of the message called `name`; it may have no record."""
    decoder: Callable[[bytes], Any] = _function("read", name)
    return decoder


class SeppCodec:
    """What a channel or server takes as its codec: messages are named by their generated class.

    The generated stub and base therefore run unmodified on it.
    """

    __slots__ = ()

    def encode(self, message: object, message_type: type) -> bytes:
        """The bytes of a record, or of a generated message.

        Raises:
            EncodeError: a field holds what the message cannot, or it is no `message_type`.
        """
        if isinstance(message, message_type):
            try:
                return bytes(message)  # type: ignore[call-overload, no-any-return]
            except Exception as error:
                raise EncodeError(f"{message_type.__name__}: {error}") from None
        if type(message).__name__ != message_type.__name__ or not isinstance(message, Record):
            raise EncodeError(f"{type(message).__name__} is no {message_type.__name__}")
        return encode(message)

    def decode(self, data: bytes, message_type: type) -> Record:
        """The record of a generated message class.

        Raises:
            DecodeError: `data` is no such message.
        """
        record = message_table(message_type.__name__).record
        if record is None:
            raise DecodeError(f"{message_type.__name__} has no record")
        return decode(record, data)


def _function(direction: str, name: str) -> Any:
    function = f"{direction}_{name}"
    try:
        return _namespace[function]
    except KeyError:
        _compile(name)
        return _namespace[function]


def _compile(name: str) -> None:
    """Compile the codecs of a message and of all messages inside that are not there yet."""
    tables: dict[str, MessageTable] = {}
    waiting = [name]
    while waiting:
        if (name := waiting.pop()) in tables or f"decode_{name}" in _namespace:
            continue
        tables[name] = table = message_table(name)
        if table.record is not None:
            _namespace[name] = table.record
        waiting += [f.message for f in table.fields if f.message is not None and not f.raw]
        waiting += [f.map_value for f in table.fields if f.map_value is not None and not f.raw]
    source = "\n".join(codec_source(table) for table in tables.values())
    exec(compile(source, "<codecs of sepp_trio.wire>", "exec"), _namespace)


def _merge(name: str, first: bytes, second: bytes) -> bytes:
    """What two occurrences of an undecoded message mean together."""
    record = part_decoder(name)(first)
    merged = _namespace[f"decode_{name}"](second, 0, len(second), record)
    return part_encoder(name)(merged)


def _encode_error(message: str, field: str, error: Exception) -> EncodeError:
    where = _readable(message, field)
    if isinstance(error, UnicodeEncodeError):
        return EncodeError(f"{where}: not Unicode text ({error.reason})")
    return EncodeError(f"{where}: {error}")


def _decode_error(message: str, field: str | None, error: Exception) -> DecodeError:
    where = _readable(message, field)
    if isinstance(error, IndexError):
        return DecodeError(f"{where}: {TRUNCATED}")
    if isinstance(error, UnicodeDecodeError):
        return DecodeError(f"{where}: not UTF-8 ({error.reason})")
    return DecodeError(f"{where}: {error}")


def _readable(message: str, field: str | None) -> str:
    # A part without a record has a name like Job_custom_entry.
    where = message.replace("_", ".")
    return where if field is None else f"{where}.{field}"


# What the source that codec_source writes calls, and the functions that it has made so far.
_namespace: dict[str, Any] = {
    "DecodeError": DecodeError,
    "EncodeError": EncodeError,
    "SMALL": _primitives.SMALL,
    "TRUNCATED": TRUNCATED,
    "decode_error": _decode_error,
    "encode_error": _encode_error,
    "merge": _merge,
    "pack_double": struct.Struct("<d").pack,
    "read_short": _primitives.read_short,
    "read_varint": _primitives.read_varint,
    "signed32": _primitives.signed32,
    "signed64": _primitives.signed64,
    "skip": _primitives.skip,
    "unpack_double": struct.Struct("<d").unpack_from,
    "unsigned32": _primitives.unsigned32,
    "unsigned64": _primitives.unsigned64,
    "varint": _primitives.varint,
}
