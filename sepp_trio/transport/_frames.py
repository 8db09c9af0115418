"""HTTP/2 frames as bytes: numbers, builders, and the errors of a connection."""

from __future__ import annotations

import enum
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

# Frame types.
DATA = 0
HEADERS = 1
PRIORITY = 2
RST_STREAM = 3
SETTINGS = 4
PUSH_PROMISE = 5
PING = 6
GOAWAY = 7
WINDOW_UPDATE = 8
CONTINUATION = 9

# Flags.
END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
END_ALL = END_HEADERS | END_STREAM
PADDED = 0x8
PRIORITY_FIELDS = 0x20

# Settings.
HEADER_TABLE_SIZE = 1
ENABLE_PUSH = 2
MAX_CONCURRENT_STREAMS = 3
INITIAL_WINDOW_SIZE = 4
MAX_FRAME_SIZE = 5
MAX_HEADER_LIST_SIZE = 6

DEFAULT_WINDOW = 65535
MAX_WINDOW = 2**31 - 1
MAX_STREAM_ID = 2**31 - 1
FRAME_SIZE = 16384
"""The largest frame payload that we send or accept: the protocol's default."""

HEAD = struct.Struct(">HBBBI")
"""Length (upper 16, lower 8 bits), type, flags, stream."""
DATA_HEAD = struct.Struct(">HBBBIBI")
"""The head of a DATA frame and the five bytes before a gRPC message."""
PREFIX = struct.Struct(">BI")
"""Compressed flag and length of a gRPC message."""

_SETTING = struct.Struct(">HI")
_U32 = struct.Struct(">I")
_PAIR = struct.Struct(">II")


class Code(enum.IntEnum):
    """Error codes of RST_STREAM and GOAWAY."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


def code_name(code: int) -> str:
    """The name of an error code, or its number if we do not know it."""
    try:
        return Code(code).name
    except ValueError:
        return str(code)


class ConnectionFault(Exception):
    """The peer broke the protocol: the whole connection must end with this code."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(f"{code.name}: {reason}")
        self.code = code
        self.reason = reason


class StreamFault(Exception):
    """The peer broke the protocol on one stream: it must be reset with this code."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(f"{code.name}: {reason}")
        self.code = code
        self.reason = reason


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    size = len(payload)
    return HEAD.pack(size >> 8, size & 255, kind, flags, stream) + payload


def settings(values: dict[int, int]) -> bytes:
    """A SETTINGS frame with these values."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*item) for item in values.items()))


def window_update(stream: int, increment: int) -> bytes:
    """A WINDOW_UPDATE frame; stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream, _U32.pack(increment))


def rst_stream(stream: int, code: int) -> bytes:
    """A RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream, _U32.pack(code))


def goaway(last_stream: int, code: int, debug: bytes = b"") -> bytes:
    """A GOAWAY frame."""
    return frame(GOAWAY, 0, 0, _PAIR.pack(last_stream, code) + debug)


def header_frames(stream: int, block: bytes, flags: int) -> bytes:
    """A header block as HEADERS and as many CONTINUATION frames as it needs.

    ``flags`` may hold END_STREAM; END_HEADERS is added to the last frame.
    """
    if len(block) <= FRAME_SIZE:
        return frame(HEADERS, flags | END_HEADERS, stream, block)
    parts = [frame(HEADERS, flags, stream, block[:FRAME_SIZE])]
    for at in range(FRAME_SIZE, len(block), FRAME_SIZE):
        last = at + FRAME_SIZE >= len(block)
        parts.append(
            frame(CONTINUATION, END_HEADERS if last else 0, stream, block[at : at + FRAME_SIZE])
        )
    return b"".join(parts)


def parse_settings(payload: bytes) -> list[tuple[int, int]]:
    """The values of a SETTINGS payload, in order.

    Raises:
        ConnectionFault: the length is no multiple of six.
    """
    if len(payload) % 6:
        raise ConnectionFault(Code.FRAME_SIZE_ERROR, "SETTINGS of a wrong length")
    return list(_SETTING.iter_unpack(payload))


def parse_u32(payload: bytes) -> int:
    """The number in a four-byte payload.

    Raises:
        ConnectionFault: the payload has another length.
    """
    if len(payload) != 4:
        raise ConnectionFault(Code.FRAME_SIZE_ERROR, "frame of a wrong length")
    return int.from_bytes(payload, "big")
