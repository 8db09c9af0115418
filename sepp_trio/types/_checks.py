"""Checks of arguments: every refusal names the field and the limit."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TypeAlias

Duration: TypeAlias = float | timedelta
"""Seconds, or a ``timedelta``."""

MAX_DURATION = 315_576_000_000.0
"""Seconds; the range of google.protobuf.Duration (10,000 years)."""

UINT32_MAX = 2**32 - 1

# spec: no "/", no control characters (Unicode Cc), not "." or ".."
_FORBIDDEN_IN_QUEUE = re.compile("[/\x00-\x1f\x7f-\x9f]")


def seconds(value: Duration, field: str, *, zero: bool = False) -> float:
    """Seconds of a duration: positive (or zero where ``zero``) and at most 10,000 years."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{field} must be seconds or a timedelta, not {type(value).__name__}")
    # The conditions are so put that a NaN fails them, and an int beyond any float is compared.
    if not value >= 0 or (value == 0 and not zero):
        raise ValueError(
            f"{field} must be {'at least' if zero else 'more than'} 0 s, not {shown(value)}"
        )
    if value > MAX_DURATION:
        raise ValueError(f"{field} must be at most {MAX_DURATION:.0f} s, not {shown(value)}")
    return float(value)


def shown(value: float) -> str:
    """A number as it stands in a message: Python does not write those of thousands of digits."""
    try:
        return str(value)
    except ValueError:
        return "a number of thousands of digits"


def text(value: str, field: str, *, empty: bool = False) -> str:
    """A string that UTF-8 can hold, and not empty unless ``empty``."""
    if not isinstance(value, str):
        raise TypeError(f"{field} must be a string, not {type(value).__name__}")
    if not value and not empty:
        raise ValueError(f"{field} must not be empty")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"{field} must be valid Unicode: {error.reason}") from None
    return value


def queue_name(value: str, field: str = "queue") -> str:
    """A name that every server takes: the structural rule of the contract."""
    text(value, field)
    if not _may_name_a_queue(value):
        raise ValueError(
            f"{field} must not be '.' or '..' nor contain '/' or control characters, not {value!r}"
        )
    return value


@lru_cache(1024)
def _may_name_a_queue(value: str) -> bool:
    # Remembered: most jobs go to the same few queues.
    return value not in (".", "..") and not _FORBIDDEN_IN_QUEUE.search(value)


def integer(value: int, field: str, minimum: int, maximum: int = UINT32_MAX) -> int:
    """A whole number within the limits; a bool is none."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{field} must be an int, not {type(value).__name__}")
    if not minimum <= value <= maximum:
        raise ValueError(f"{field} must be between {minimum} and {maximum}, not {shown(value)}")
    return value


def aware(value: datetime, field: str) -> datetime:
    """A datetime with a time zone; a naive one has no certain meaning."""
    if not isinstance(value, datetime):
        raise TypeError(f"{field} must be a datetime, not {type(value).__name__}")
    if value.utcoffset() is None:
        raise ValueError(f"{field} must have a time zone (an aware datetime), not {value!r}")
    return value
