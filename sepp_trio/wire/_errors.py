"""The two errors of the codec, and how its functions word them."""

from __future__ import annotations

TRUNCATED = "ends in the middle"


class EncodeError(ValueError):
    """A record holds what its message cannot; the text names message and field."""


class DecodeError(ValueError):
    """Bytes that are not the message they should be; the text names message and field."""


def encode_error(message: str, field: str, error: Exception) -> EncodeError:
    """What went wrong with a field of a record."""
    where = _readable(message, field)
    if isinstance(error, UnicodeEncodeError):
        return EncodeError(f"{where}: not Unicode text ({error.reason})")
    return EncodeError(f"{where}: {error}")


def decode_error(message: str, field: str | None, error: Exception) -> DecodeError:
    """What went wrong in a message; `field` is None if it was no field of it."""
    where = _readable(message, field)
    if isinstance(error, IndexError):
        return DecodeError(f"{where}: {TRUNCATED}")
    if isinstance(error, UnicodeDecodeError):
        return DecodeError(f"{where}: not UTF-8 ({error.reason})")
    return DecodeError(f"{where}: {error}")


def _readable(message: str, field: str | None) -> str:
    # A part without a record has a name like Job_custom_entry.
    where = message.replace("_", ".")
    return where if field is None else f"{where}.{field}"
