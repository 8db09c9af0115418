"""Nack reasons: any string in, one that fits a dead-letter record out."""

from __future__ import annotations

MAX_REASON_BYTES = 4096
"""UTF-8 bytes of a reason; longer ones are cut and end in ``…``."""

_CUT = "…".encode()


def clean_reason(reason: str) -> str:
    """``reason`` with lone surrogates (as undecodable file names bring them into messages)
    written as escapes, cut to ``MAX_REASON_BYTES`` of UTF-8."""
    if not isinstance(reason, str):
        raise TypeError(f"reason must be a string, not {type(reason).__name__}")
    # A character is at least a byte: no more of a huge text needs to be encoded.
    data = reason[: MAX_REASON_BYTES + 1].encode("utf-8", "backslashreplace")
    if len(data) <= MAX_REASON_BYTES:
        return data.decode()
    return data[: MAX_REASON_BYTES - len(_CUT)].decode("utf-8", "ignore") + _CUT.decode()
