"""The header blocks of a server's answers, and the texts that they and requests hold."""

from __future__ import annotations

import re
import time
from email.utils import formatdate
from urllib.parse import quote

from grpclib.const import Status

from ._headers import encode_block

_MAX_MESSAGE = 4096
"""Bytes of an encoded grpc-message: clients allow 8 or 16 KiB of headers in all."""
# What the real server leaves as it is, letters, digits and "_.-~" apart.
_PLAIN = "!$&'()*+,/:;=@[\\]^|"
_UNITS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "S": 1.0, "M": 60.0, "H": 3600.0}
_TIMEOUT = re.compile(r"([0-9]{1,8})([numSMH])")

OK_TRAILERS = encode_block([("grpc-status", "0")])
HEADERS_TOO_LARGE = encode_block([(":status", "431")])
ONLY_IDENTITY = encode_block([("grpc-accept-encoding", "identity")])


def parse_timeout(text: str | None) -> float | None:
    """The seconds of a ``grpc-timeout``; None for none, and for one that says nothing."""
    if text is None or not (match := _TIMEOUT.fullmatch(text)):
        return None
    return int(match[1]) * _UNITS[match[2]]


def encode_message(text: str) -> str:
    """A ``grpc-message``: percent-encoded UTF-8, cut if it is very long."""
    encoded = quote(text[:_MAX_MESSAGE], safe=_PLAIN, errors="replace")
    if len(encoded) <= _MAX_MESSAGE:
        return encoded
    parts, size = [], 0
    for character in text:
        part = quote(character, safe=_PLAIN, errors="replace")
        size += len(part)
        if size > _MAX_MESSAGE:
            break
        parts.append(part)
    return "".join(parts)


class AnswerBlocks:
    """Header blocks, encoded once for as long as they stay the same."""

    def __init__(self) -> None:
        self._second = -1
        self._head = b""

    def head(self) -> bytes:
        """The headers of an answer: they change with the date, once a second."""
        now = int(time.time())
        if now != self._second:
            self._second = now
            self._head = encode_block(
                [
                    (":status", "200"),
                    ("content-type", "application/grpc"),
                    ("date", formatdate(now, usegmt=True)),
                ]
            )
        return self._head

    def error(self, status: Status, message: str | None) -> bytes:
        """An answer of headers only."""
        return self.head() + self.trailers(status, message)

    def trailers(self, status: Status, message: str | None) -> bytes:
        """The trailers that end an answer with an error."""
        fields = [("grpc-status", str(status.value))]
        if message:
            fields.append(("grpc-message", encode_message(message)))
        return encode_block(fields)
