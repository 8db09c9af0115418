"""HTTP/2 frames out of a stream of bytes, and header blocks that stand alone again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from sepp_trio.transport._frames import (
    CONTINUATION,
    END_HEADERS,
    HEAD,
    HEADERS,
    PADDED,
    PREFACE,
    PRIORITY_FIELDS,
)
from sepp_trio.transport._headers import BlockDecoder, Fields, encode_block

# What an encoder may make its table as large as: whatever the other side allows.
_ANY_TABLE: Final = 1 << 20


class Frame(NamedTuple):
    """A frame; of HEADERS with their CONTINUATIONs, ``payload`` is the whole block."""

    kind: int
    flags: int
    stream: int
    payload: bytes


class FrameReader:
    """Cuts one direction of a connection into frames."""

    def __init__(self, *, preface: bool) -> None:
        # The client's direction begins with the preface.
        self._preface = len(PREFACE) if preface else 0
        self._rest = b""
        self._block: Frame | None = None

    def feed(self, data: bytes | bytearray) -> Iterator[Frame | bytes]:
        """The frames that are complete now; the preface as bytes."""
        data = self._rest + data
        at, end = 0, len(data)
        if self._preface:
            if end < self._preface:
                self._rest = data
                return
            at, self._preface = self._preface, 0
            yield PREFACE
        while end - at >= 9:
            high, low, kind, flags, number = HEAD.unpack_from(data, at)
            stop = at + 9 + (high << 8 | low)
            if stop > end:
                break
            frame = Frame(kind, flags, number & 0x7FFFFFFF, data[at + 9 : stop])
            at = stop
            if kind in (HEADERS, CONTINUATION):
                whole = self._headers(frame)
                if whole is not None:
                    yield whole
            else:
                yield frame
        self._rest = data[at:]

    def _headers(self, frame: Frame) -> Frame | None:
        if frame.kind == HEADERS:
            payload = frame.payload
            if frame.flags & PADDED:
                payload = payload[1 : len(payload) - payload[0]]
            if frame.flags & PRIORITY_FIELDS:
                payload = payload[5:]
            self._block = frame._replace(payload=payload)
        elif self._block is not None:
            self._block = self._block._replace(payload=self._block.payload + frame.payload)
        if not frame.flags & END_HEADERS or self._block is None:
            return None
        whole, self._block = self._block, None
        return whole


class HeaderBlock:
    """A decoded block: the fields that a proxy looks at, and all of them encoded anew."""

    __slots__ = ("literal", "path", "status")

    def __init__(self, fields: Fields) -> None:
        texts = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in fields]
        self.literal = encode_block(texts)
        named = dict(texts)
        self.path = named.get(":path", "")
        # Of trailers: the status of the call.
        self.status = named.get("grpc-status")


def block_decoder() -> BlockDecoder[HeaderBlock]:
    """Reads the blocks of one direction, in order: they may lean on each other, and what it
    makes of them does not, so that some can be left out or sent later."""
    decoder = BlockDecoder(HeaderBlock, remember=512)
    decoder.table_size_acknowledged(_ANY_TABLE)
    return decoder
