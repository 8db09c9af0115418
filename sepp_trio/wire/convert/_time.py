"""Timestamps and durations: exact, in whole numbers wherever a float would be off by one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from .._errors import DecodeError
from ..records import Duration, Timestamp

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NANOS = 10**9
_MILLISECOND = _NANOS // 1000
_LAST_SECOND = 253_402_300_799
_LAST = datetime.max.replace(tzinfo=UTC)


def datetime_from_wire(value: Timestamp, field: str) -> datetime:
    """An instant in UTC; digits below the microsecond are cut off (towards the past).

    Nanos out of their range are taken for what they add up to.

    Raises:
        DecodeError: before year 1 or after year 9999; names `field`.
    """
    seconds, nanos = value
    try:
        return _EPOCH + timedelta(0, seconds, nanos // 1000)
    except OverflowError:
        raise DecodeError(f"{field} is no time between the years 1 and 9999: {value}") from None


def epoch_datetime_from_wire(value: Timestamp | None, field: str) -> datetime:
    """A time of the server's clock: like :func:`datetime_from_wire`, set, and not before 1970.

    Raises:
        DecodeError: it is not; names `field`.
    """
    if value is None:
        raise DecodeError(f"{field} is not set")
    if value[0] < 0 or value[1] < 0:
        raise DecodeError(f"{field} is before 1970: {value}")
    return datetime_from_wire(value, field)


def lease_end_from_wire(value: Timestamp | None) -> datetime:
    """The end of a lease: like :func:`epoch_datetime_from_wire`, but the last of all datetimes for
    what lies beyond them. Who asks for a lease without end must not lose the job for it.

    Raises:
        DecodeError: it is not set, or before 1970.
    """
    if value is not None and value[1] >= 0 and value[0] > _LAST_SECOND:
        return _LAST
    return epoch_datetime_from_wire(value, "lease_expires_at")


def datetime_to_wire(value: datetime) -> Timestamp:
    """An aware datetime, exactly."""
    since = value - _EPOCH
    return since.days * 86400 + since.seconds, since.microseconds * 1000


def seconds_from_wire(value: Duration | None) -> float:
    """Seconds, as near as a float can be; 0 where none is given."""
    if value is None:
        return 0.0
    seconds, nanos = value
    return (seconds * _NANOS + nanos) / _NANOS


def seconds_to_wire(value: float) -> Duration:
    """A duration to the nearest nanosecond, and at least a millisecond unless it is 0.

    The server counts in milliseconds and cuts off the rest: without the minimum, a short wait or
    delay would be none at all. Durations of the protocol are never negative.
    """
    seconds = int(value)
    nanos = round((value - seconds) * _NANOS)
    if nanos == _NANOS:
        return seconds + 1, 0
    if seconds == 0 and nanos < _MILLISECOND and value > 0:
        return 0, _MILLISECOND
    return seconds, nanos
