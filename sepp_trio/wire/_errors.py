"""The two errors of the codec."""

from __future__ import annotations


class EncodeError(ValueError):
    """A record holds what its message cannot; the text names message and field."""


class DecodeError(ValueError):
    """Bytes that are not the message they should be; the text names message and field."""
