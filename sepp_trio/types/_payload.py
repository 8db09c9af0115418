"""What a job carries: payload, custom values, trace context, priority."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

from ._checks import shown, text
from ._value import Value

Primitive: TypeAlias = str | int | float | bool
"""A value of the custom map; an int is 64 bits wide and signed."""

_TRACEPARENT = re.compile("[0-9a-fA-F]{2}-([0-9a-fA-F]{32})-([0-9a-fA-F]{16})-[0-9a-fA-F]{2}")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Payload(Value):
    """A job's data, at least one byte, and the free label that says how to read it.

    Raises:
        TypeError, ValueError: a member of another type, or empty (a job without
            data has no payload at all).
    """

    data: bytes
    encoding: str

    def __post_init__(self) -> None:
        if not isinstance(self.data, bytes):
            if not isinstance(self.data, (bytearray, memoryview)):
                raise TypeError(f"payload.data must be bytes, not {type(self.data).__name__}")
            object.__setattr__(self, "data", bytes(self.data))
        if not self.data:
            raise ValueError("payload.data must not be empty; for no data leave the payload out")
        text(self.encoding, "payload.encoding")

    @classmethod
    def _of_checked(cls, data: bytes, encoding: str) -> Payload:
        """A payload of members that have passed all checks elsewhere, at a third of the cost."""
        payload = object.__new__(cls)
        _set_data(payload, data)
        _set_encoding(payload, encoding)
        return payload

    @classmethod
    def json(cls, value: object) -> Payload:
        """``value`` as compact UTF-8 JSON, labelled ``json``.

        Raises:
            TypeError, ValueError: JSON has no form for it (NaN and infinity included).
        """
        document = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return cls(text(document, "the JSON payload").encode(), "json")

    def decode_json(self) -> object:
        """The data read as JSON, whatever the label says.

        Raises:
            ValueError: it is not JSON.
        """
        decoded: object = json.loads(self.data)
        return decoded


# A frozen dataclass sets its members by name: these are the slots themselves.
_set_data = vars(Payload)["data"].__set__
_set_encoding = vars(Payload)["encoding"].__set__


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TraceContext(Value):
    """A W3C trace context that travels with the job.

    Raises:
        ValueError: ``traceparent`` is not four fields of 2, 32, 16 and 2 hex digits
            with non-zero ids.
    """

    traceparent: str
    tracestate: str | None = None

    def __post_init__(self) -> None:
        text(self.traceparent, "trace_context.traceparent")
        match = _TRACEPARENT.fullmatch(self.traceparent)
        if match is None or not all(int(digits, 16) for digits in match.groups()):
            raise ValueError(
                "trace_context.traceparent must be VERSION-TRACEID-SPANID-FLAGS in 2, 32, 16 and 2"
                f" hex digits with non-zero ids, not {self.traceparent!r}"
            )
        if self.tracestate is not None:
            text(self.tracestate, "trace_context.tracestate", empty=True)


class Priority(IntEnum):
    """0 (lowest) to 9 (highest); a plain int does as well."""

    P0 = 0
    P1 = 1
    P2 = 2
    P3 = 3
    P4 = 4
    P5 = 5
    P6 = 6
    P7 = 7
    P8 = 8
    P9 = 9
    MIN = 0
    MAX = 9


def checked_custom(custom: Mapping[str, Primitive]) -> dict[str, Primitive]:
    """A copy of the map; refuses empty keys and values that the wire cannot hold."""
    if custom.__class__ is not dict and not isinstance(custom, Mapping):
        raise TypeError(f"custom must be a mapping, not {type(custom).__name__}")
    for key, value in custom.items():
        if key.__class__ is not str or not key or not key.isascii():
            text(key, "a key of custom")
        if isinstance(value, str):
            if not value.isascii():
                text(value, f"custom[{key!r}]", empty=True)
        elif isinstance(value, int) and not isinstance(value, bool):
            if not -(2**63) <= value < 2**63:
                raise ValueError(f"custom[{key!r}] must fit in 64 bits, not {shown(value)}")
        elif not isinstance(value, (bool, float)):
            raise TypeError(
                f"custom[{key!r}] must be str, int, float or bool, not {type(value).__name__}"
            )
    return dict(custom)
