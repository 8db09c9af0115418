"""The checks of arguments: every refusal names the field and the limit."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sepp_trio import EnqueueRequest, RetryPolicy
from sepp_trio.types._checks import (
    MAX_DURATION,
    UINT32_MAX,
    aware,
    integer,
    queue_name,
    seconds,
    text,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, 1.0), (0.0004, 0.0004), (timedelta(microseconds=1), 1e-6), (8_640_000_000, 8.64e9)],
)
def test_seconds_take_numbers_and_timedeltas(value: float | timedelta, expected: float) -> None:
    result = seconds(value, "lease_duration")
    assert result == expected
    assert type(result) is float


@pytest.mark.parametrize(
    "value", [0, -1.5, timedelta(0), timedelta(microseconds=-1), float("nan"), -float("inf")]
)
def test_seconds_that_are_not_positive_are_refused(value: float | timedelta) -> None:
    with pytest.raises(ValueError, match="lease_duration must be more than 0 s"):
        seconds(value, "lease_duration")


def test_zero_seconds_are_taken_where_they_mean_something() -> None:
    assert seconds(0, "wait_timeout", zero=True) == 0.0
    with pytest.raises(ValueError, match=r"wait_timeout must be at least 0 s, not -0\.001"):
        seconds(-0.001, "wait_timeout", zero=True)


@pytest.mark.parametrize("value", [MAX_DURATION + 1, float("inf"), timedelta.max, 10**400])
def test_seconds_beyond_the_range_of_the_wire_are_refused(value: float | timedelta) -> None:
    with pytest.raises(ValueError, match="delay must be at most 315576000000 s"):
        seconds(value, "delay")


@pytest.mark.parametrize("value", [10**5000, -(10**5000)], ids=["huge", "tiny"])
def test_numbers_too_long_to_be_written_are_refused_by_name(value: int) -> None:
    for refused in (
        lambda: seconds(value, "the field"),
        lambda: integer(value, "the field", 1),
        lambda: EnqueueRequest("q", "t", custom={"the field": value}),
    ):
        with pytest.raises(ValueError, match=r"the field.* must .*thousands of digits"):
            refused()
    if value < 0:
        with pytest.raises(ValueError, match=r"multiplier must .*thousands of digits"):
            RetryPolicy(multiplier=value)


@pytest.mark.parametrize("value", [True, "1", None, 1j])
def test_seconds_of_another_type_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match="delay must be seconds or a timedelta, not"):
        seconds(value, "delay")  # type: ignore[arg-type]


@given(st.floats() | st.timedeltas() | st.integers())
def test_seconds_are_in_range_or_a_value_error(value: float | timedelta) -> None:
    try:
        result = seconds(value, "x")
    except ValueError:
        return
    assert 0 < result <= MAX_DURATION


def test_text_is_checked() -> None:
    assert text("ä\N{SNOWMAN}", "job_type") == "ä\N{SNOWMAN}"
    assert text("", "job_type", empty=True) == ""
    with pytest.raises(ValueError, match="job_type must not be empty"):
        text("", "job_type")
    with pytest.raises(TypeError, match="job_type must be a string, not bytes"):
        text(b"x", "job_type")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="job_type must be valid Unicode"):
        text("\ud800", "job_type")


@pytest.mark.parametrize("name", ["a", "...", "a b", "\u200b", "é", "x" * 600])
def test_queue_names_that_the_contract_allows_are_taken(name: str) -> None:
    assert queue_name(name) == name


@pytest.mark.parametrize("name", [".", "..", "a/b", "\0", "a\n", "\x7f", "\x85"])
def test_queue_names_that_no_server_takes_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"queue must not be '\.' or '\.\.' nor contain '/'"):
        queue_name(name)


@given(st.text())
def test_queue_names_follow_the_rule_of_the_contract(name: str) -> None:
    import unicodedata

    allowed = (
        name not in ("", ".", "..")
        and "/" not in name
        and all(unicodedata.category(character) not in ("Cc", "Cs") for character in name)
    )
    try:
        queue_name(name)
    except ValueError:
        assert not allowed
    else:
        assert allowed


def test_integers_are_checked() -> None:
    assert integer(1, "max_jobs", 1) == 1
    assert integer(UINT32_MAX, "max_jobs", 1) == UINT32_MAX
    for value in (0, -1, UINT32_MAX + 1):
        with pytest.raises(
            ValueError, match=f"max_jobs must be between 1 and 4294967295, not {value}"
        ):
            integer(value, "max_jobs", 1)
    for other in (True, 1.0, "1", None):
        with pytest.raises(TypeError, match="max_jobs must be an int, not"):
            integer(other, "max_jobs", 1)  # type: ignore[arg-type]


def test_naive_datetimes_are_refused() -> None:
    moment = datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=9)))
    assert aware(moment, "scheduled_at") is moment
    with pytest.raises(ValueError, match="scheduled_at must have a time zone"):
        aware(datetime(2026, 1, 1), "scheduled_at")
    with pytest.raises(TypeError, match="scheduled_at must be a datetime, not float"):
        aware(1.5, "scheduled_at")  # type: ignore[arg-type]
