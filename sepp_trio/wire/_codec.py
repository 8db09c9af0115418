"""One encoder and one decoder per record class.

They are generated (see :mod:`sepp_trio.wire._codegen`) and imported when the first is asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

from . import records
from ._errors import DecodeError, EncodeError
from ._primitives import Slice
from ._record import Record

R = TypeVar("R", bound=Record)


def encode(record: Record) -> bytes:
    """The message that `record` stands for.

    Raises:
        EncodeError: a field holds what the message cannot.
    """
    return encoder_of(type(record))(record)


def decode(cls: type[R], data: bytes | Slice) -> R:
    """Read `data` as the message that `cls` stands for.

    Raises:
        DecodeError: it is none.
    """
    return decoder_of(cls)(data)


def encoder_of(cls: type[R]) -> Callable[[R], bytes]:
    """The function that :func:`encode` uses for `cls`, for callers that use it often."""
    return part_encoder(cls.__name__)


def decoder_of(cls: type[R]) -> Callable[[bytes | Slice], R]:
    """The function that :func:`decode` uses for `cls`, for callers that use it often."""
    return part_decoder(cls.__name__)


@functools.cache
def part_encoder(name: str) -> Callable[[Any], bytes]:
    """Encoder of the message called `name`, or of the map `Message_field` that a record holds raw.

    Raises:
        LookupError: there is no such message.
    """
    return _function(f"encode_{name}")


@functools.cache
def part_decoder(name: str) -> Callable[[bytes | Slice], Any]:
    """The decoder, likewise."""
    return _function(f"decode_{name}")


def codecs() -> ModuleType:
    """The generated functions."""
    from .generated import codecs

    return codecs


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
        name = message_type.__name__
        if not isinstance(getattr(records, name, None), type):  # parts are tuples
            raise DecodeError(f"{name} has no record")
        record: Record = part_decoder(name)(data)
        return record


def _function(name: str) -> Callable[[Any], Any]:
    try:
        function: Callable[[Any], Any] = getattr(codecs(), name)
    except AttributeError:
        raise LookupError(f"no function {name}: no such message in the contract") from None
    return function
