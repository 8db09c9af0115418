"""Nack reasons: any string becomes one that the wire and a dead letter can hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sepp_trio.client._reason import MAX_REASON_BYTES, clean_reason


def test_ordinary_reasons_stay_as_they_are() -> None:
    for reason in ("", "disk full", "größer \N{SNOWMAN}", "x" * MAX_REASON_BYTES):
        assert clean_reason(reason) == reason


def test_lone_surrogates_are_written_as_escapes() -> None:
    assert clean_reason("no file \udcff") == r"no file \udcff"


def test_long_reasons_are_cut_and_say_so() -> None:
    for reason in ("x" * 10**6, "\N{SNOWMAN}" * 5000, "\ud800" * 5000):
        cleaned = clean_reason(reason)
        assert cleaned.endswith("…")
        assert MAX_REASON_BYTES - 3 <= len(cleaned.encode()) <= MAX_REASON_BYTES


@given(st.text(st.characters(exclude_categories=()), max_size=50).map(lambda text: text * 100))
def test_any_reason_fits(reason: str) -> None:
    assert len(clean_reason(reason).encode()) <= MAX_REASON_BYTES


def test_a_reason_is_a_string() -> None:
    with pytest.raises(TypeError, match="reason must be a string, not ValueError"):
        clean_reason(ValueError("x"))  # type: ignore[arg-type]
