"""What a call needs to know of its method, and of its deadline."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ._headers import encode_block

Req = TypeVar("Req")
Resp = TypeVar("Resp")

_MOST_DIGITS = 99_999_999


@dataclass(frozen=True, slots=True)
class Method(Generic[Req, Resp]):
    """A unary method: its route (``/package.Service/Method``) and its codecs.

    ``decode`` may raise any Exception for bytes that are no answer.
    """

    route: str
    encode: Callable[[Req], bytes]
    decode: Callable[[bytes], Resp]


def timeout_text(seconds: float) -> str:
    """A positive time as ``grpc-timeout``: at most eight digits, never less than asked.

    In milliseconds as long as they fit, so that calls with the same timeout
    have the same headers.
    """
    for factor, unit in ((1000, "m"), (1, "S"), (1 / 60, "M"), (1 / 3600, "H")):
        count = max(math.ceil(seconds * factor), 1)
        if count <= _MOST_DIGITS:
            return f"{count}{unit}"
    return f"{_MOST_DIGITS}H"


class TimeoutBlocks:
    """Encoded ``grpc-timeout`` fields, remembered: most calls ask for the same few."""

    def __init__(self) -> None:
        self._known: dict[int, bytes] = {}

    def block(self, seconds: float) -> bytes:
        """The header block of a positive, finite time."""
        milliseconds = math.ceil(seconds * 1000)
        found = self._known.get(milliseconds)
        if found is None:
            if len(self._known) >= 1024:
                self._known.clear()
            found = encode_block([("grpc-timeout", timeout_text(seconds))])
            self._known[milliseconds] = found
        return found
