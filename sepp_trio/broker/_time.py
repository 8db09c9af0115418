"""Wire times and the broker's time: whole milliseconds since the epoch."""

from __future__ import annotations

from typing import Final

# Times beyond are held at it: they never come, and SQLite's integers end here.
NEVER: Final = 2**63 - 1


def nanos(value: tuple[int, int]) -> int:
    """The whole of a Duration or Timestamp, which may mix signs or hold seconds in its nanos."""
    return value[0] * 1_000_000_000 + value[1]


def duration_ms(value: tuple[int, int]) -> int:
    """A duration that is not negative, cut to milliseconds."""
    return nanos(value) // 1_000_000


def timestamp_ms(value: tuple[int, int]) -> int:
    """A point in time, cut to milliseconds (towards zero, as the real server cuts)."""
    total = nanos(value)
    return min(total // 1_000_000, NEVER) if total >= 0 else -(-total // 1_000_000)


def to_wire(ms: int) -> tuple[int, int]:
    """Milliseconds as a Timestamp or Duration."""
    return ms // 1000, ms % 1000 * 1_000_000


def after(now: int, delay: int) -> int:
    """A point in time ``delay`` from now, at most :data:`NEVER`."""
    return min(now + delay, NEVER)
