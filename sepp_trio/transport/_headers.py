"""Header blocks: encoded once as literals, decoded once and remembered.

We announce a header table of no size, so every block of the peer stands alone
and equal bytes mean equal headers.  Not every peer keeps to that at once (or
at all, as grpcio under load): whether the table is empty is looked at before a
block is remembered, and a peer that uses the default table is only slower.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import hpack

from ._frames import Code, ConnectionFault

# At DEBUG hpack logs each header with its value, API keys among them. Who turns DEBUG on for
# everything does not want those; who wants them may set the level of this logger.
if logging.getLogger("hpack").level == logging.NOTSET:
    logging.getLogger("hpack").setLevel(logging.INFO)

T = TypeVar("T")

Fields = list[tuple[bytes, bytes]]

TABLE_OFF = b"\x20"
"""Sets the table size to zero.  The first block that we send on a connection
starts with it: whatever size the peer allows then, ours is never larger."""

MAX_HEADER_LIST = 16384
"""Announced and enforced: the sum of name, value and 32 for each field."""
_HARD_LIMIT = 4 * MAX_HEADER_LIST
_REMEMBERED_BLOCK = 2048


def encode_block(fields: Iterable[tuple[str, str]]) -> bytes:
    """Encode fields as literals that nobody may index, without a table.

    Blocks can be joined: the bytes of two are the block of both.

    Raises:
        UnicodeEncodeError: a name or value is not ASCII.
    """
    return b"".join(
        b"\x10" + _text(name.encode("ascii")) + _text(value.encode("ascii"))
        for name, value in fields
    )


def _text(text: bytes) -> bytes:
    size = len(text)
    if size < 127:
        return bytes((size,)) + text
    # An HPACK integer with a prefix of seven bits; the Huffman bit stays off.
    out = bytearray((127,))
    size -= 127
    while size >= 128:
        out.append(size & 127 | 128)
        size >>= 7
    out.append(size)
    return bytes(out) + text


def list_size(fields: Fields) -> int:
    """The size of a header list as HTTP/2 counts it."""
    return sum(len(name) + len(value) + 32 for name, value in fields)


class BlockDecoder(Generic[T]):
    """Decodes the peer's header blocks, in order, into what ``parse`` makes of them.

    What ``parse`` returns is shared by all blocks with the same bytes: it must
    not be changed.
    """

    def __init__(self, parse: Callable[[Fields], T], *, remember: int = 128) -> None:
        self._parse = parse
        self._remember = remember
        self._decoder = hpack.Decoder(max_header_list_size=_HARD_LIMIT)
        self.known: dict[bytes, T] = {}
        """Blocks that stand alone, decoded: whoever is in a hurry may look here first."""

    def table_size_acknowledged(self, size: int) -> None:
        """From now on the peer's table may be as large as ``size``, and no larger."""
        self._decoder.max_allowed_table_size = size
        self.known.clear()

    @property
    def table_is_off(self) -> bool:
        """The peer has set its table to no size: its blocks stand alone."""
        return self._decoder.header_table_size == 0

    def decode(self, block: bytes) -> T:
        """Decode one whole block.

        Raises:
            ConnectionFault: bad HPACK, or a list beyond the hard limit.
        """
        # No block is remembered unless the table was empty before and after
        # it; the table cannot have been filled since without passing here.
        found = self.known.get(block)
        if found is not None:
            return found
        table = self._decoder.header_table.dynamic_entries
        alone = not table
        try:
            fields: Fields = list(self._decoder.decode(block, raw=True))
        except hpack.OversizedHeaderListError:
            raise ConnectionFault(Code.ENHANCE_YOUR_CALM, "header list too large") from None
        except hpack.HPACKError as error:
            raise ConnectionFault(Code.COMPRESSION_ERROR, f"bad header block: {error}") from None
        parsed = self._parse(fields)
        if not alone or table or (block[:1] >= TABLE_OFF and block[:1] < b"\x40"):
            self.known.clear()
        elif len(block) <= _REMEMBERED_BLOCK:
            if len(self.known) >= self._remember:
                self.known.clear()
            self.known[block] = parsed
        return parsed
