"""Decodes the header blocks of requests, and looks past the part that differs each time."""

from __future__ import annotations

from ._blocks import Request
from ._frames import ConnectionFault
from ._headers import BlockDecoder

_REMEMBER = 64
# A never-indexed literal with its name spelt out, as our own client writes it.
_TIMEOUT = b"\x10\x0cgrpc-timeout"


class RequestDecoder:
    """Decodes blocks, in order, into requests and their ``grpc-timeout``.

    Requests of one client are alike, but for the time-out: where a block ends
    with it, what stands before it is decoded, and remembered, by itself.

    We announce a table of no size, but a peer that goes on with its default
    one does no harm, except to its own speed.
    """

    def __init__(self) -> None:
        self._decoder = BlockDecoder(Request, remember=_REMEMBER)

    def decode(self, block: bytes) -> tuple[Request, str | None]:
        """Decode one whole block.

        Raises:
            ConnectionFault: bad HPACK, or a list beyond the hard limit.
        """
        if self._decoder.table_is_off:
            at = block.rfind(_TIMEOUT)
            value = at + len(_TIMEOUT) + 1
            if at > 0 and value <= len(block) and block[value - 1] == len(block) - value < 127:
                try:
                    return self._decoder.decode(block[:at]), block[value:].decode("latin-1")
                except ConnectionFault:
                    pass  # those bytes stand within another field: no field ends there
        request = self._decoder.decode(block)
        return request, request.timeout
