"""What a call needs to know of its method, and the header blocks of its requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ._headers import encode_block

Req = TypeVar("Req")
Resp = TypeVar("Resp")

_MOST_DIGITS = 99_999_999
_REMEMBERED = 512


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Method(Generic[Req, Resp]):
    """A unary method: its route (``/package.Service/Method``) and its codecs.

    ``decode`` may raise any Exception for bytes that are no answer.
    """

    route: str
    encode: Callable[[Req], bytes]
    decode: Callable[[bytes], Resp]


def timeout_text(milliseconds: int) -> str:
    """A positive time as ``grpc-timeout``: at most eight digits, never less than asked."""
    for factor, unit in ((1, "m"), (1000, "S"), (60_000, "M"), (3_600_000, "H")):
        count = -(-milliseconds // factor)
        if count <= _MOST_DIGITS:
            return f"{count}{unit}"
    return f"{_MOST_DIGITS}H"


class RequestBlocks(dict[int, bytes]):
    """A request's header blocks by milliseconds of ``grpc-timeout``, made when first asked for.

    Remembered, within bounds: most calls ask for the same few.
    """

    __slots__ = ("untimed",)

    def __init__(self, untimed: bytes) -> None:
        self.untimed = untimed
        """The block of a call without a deadline."""

    def __missing__(self, milliseconds: int) -> bytes:
        if len(self) >= _REMEMBERED:
            self.clear()
        timeout = encode_block([("grpc-timeout", timeout_text(milliseconds))])
        block = self[milliseconds] = self.untimed + timeout
        return block
