"""Timestamps and durations (trials 23, 24, 25)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from sepp_trio.types import ReserveOptions, RetryDirective
from sepp_trio.wire import DecodeError
from sepp_trio.wire.convert import (
    datetime_from_wire,
    datetime_to_wire,
    reserve_options_to_wire,
    retry_to_wire,
    seconds_from_wire,
    seconds_to_wire,
)

EDGES = [
    datetime(1969, 12, 31, 23, 0, 0, 1, UTC),
    datetime(2242, 12, 31, 23, 0, 0, 1, UTC),
    datetime(2026, 6, 1, 0, 0, 0, 999_999, UTC),
    datetime(2026, 6, 1, 0, 0, 0, 999_999, timezone(timedelta(hours=5))),
    datetime(9999, 12, 31, 23, 59, 59, 999_999, UTC),
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(1970, 1, 1, tzinfo=UTC),
]


@pytest.mark.parametrize("instant", EDGES)
def test_an_instant_survives_exactly(instant: datetime) -> None:
    wire = datetime_to_wire(instant)
    assert 0 <= wire[1] < 10**9
    back = datetime_from_wire(wire, "t")
    assert back == instant
    assert back.tzinfo is UTC
    judge = Timestamp()
    judge.FromDatetime(instant)
    assert wire == (judge.seconds, judge.nanos)


@given(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=9))])))
def test_any_instant_survives_exactly(instant: datetime) -> None:
    try:
        utc = instant.astimezone(UTC)
    except OverflowError:  # within hours of the calendar's ends
        return
    assert datetime_from_wire(datetime_to_wire(instant), "t") == utc


def test_an_instant_is_the_same_in_every_zone() -> None:
    utc = datetime(2026, 6, 1, 12, tzinfo=UTC)
    tokyo = utc.astimezone(timezone(timedelta(hours=9)))
    assert datetime_to_wire(utc) == datetime_to_wire(tokyo)


def test_digits_below_a_microsecond_are_cut_off() -> None:
    assert datetime_from_wire((0, 1999), "t") == datetime(1970, 1, 1, 0, 0, 0, 1, UTC)
    assert datetime_from_wire((0, -1), "t") == datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)


@pytest.mark.parametrize("seconds", [253402300800, -62135596801, 2**63 - 1, -(2**63)])
def test_a_time_beyond_the_calendar_is_a_decode_error(seconds: int) -> None:
    with pytest.raises(DecodeError, match="enqueued_at is no time between the years 1 and 9999"):
        datetime_from_wire((seconds, 0), "enqueued_at")


@pytest.mark.parametrize(
    ("seconds", "wire"),
    [
        (0.0, (0, 0)),
        (1e-9, (0, 1_000_000)),  # a positive duration is never cut to nothing
        (1e-6, (0, 1_000_000)),
        (0.0004, (0, 1_000_000)),
        (0.001, (0, 1_000_000)),
        (0.0015, (0, 1_500_000)),
        (0.3, (0, 300_000_000)),
        (30.0, (30, 0)),
        (1.1, (1, 100_000_000)),
        (59.9999999999, (60, 0)),
        (100_000 * 86400.0, (8_640_000_000, 0)),
        (315_576_000_000.0, (315_576_000_000, 0)),
    ],
)
def test_seconds_become_whole_nanoseconds(seconds: float, wire: tuple[int, int]) -> None:
    assert seconds_to_wire(seconds) == wire


@given(st.floats(0.001, 315_576_000_000.0))
def test_seconds_survive_to_the_nanosecond(seconds: float) -> None:
    whole, nanos = seconds_to_wire(seconds)
    assert 0 <= nanos < 10**9
    assert seconds_from_wire((whole, nanos)) == pytest.approx(seconds, rel=1e-15, abs=6e-10)


def test_any_duration_on_the_wire_is_a_number_of_seconds() -> None:
    assert seconds_from_wire(None) == 0.0
    assert seconds_from_wire((-1, -500_000_000)) == -1.5
    assert seconds_from_wire((1, -500_000_000)) == 0.5
    assert seconds_from_wire((2**63 - 1, 2**31 - 1)) == 2.0**63


@pytest.mark.parametrize("bad", [-1.5, -1e-6, timedelta(seconds=-1.5), timedelta.max, 1e300])
def test_what_no_duration_can_be_never_gets_here(bad: float | timedelta) -> None:
    with pytest.raises(ValueError, match="lease_duration"):
        ReserveOptions(["q"], bad)
    with pytest.raises(ValueError, match="delay"):
        RetryDirective.after(bad)


def test_short_leases_and_delays_are_sent_as_a_millisecond() -> None:
    wire = reserve_options_to_wire(
        ReserveOptions(["q", "r"], 1e-6, wait_timeout=0, worker_id="w", max_jobs=3)
    )
    assert wire.lease_duration == (0, 1_000_000)
    assert wire.wait_timeout == (0, 0)
    assert (wire.queues, wire.worker_id, wire.max_jobs) == (["q", "r"], "w", 3)
    assert retry_to_wire(RetryDirective.after(timedelta(microseconds=1))).delay == (0, 1_000_000)
    assert retry_to_wire(RetryDirective.after(0)).delay == (0, 0)
