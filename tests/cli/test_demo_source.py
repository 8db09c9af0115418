"""The demo's input: read verbatim, cut into chunks that cover it, hashed without ambiguity."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sepp_trio.cli.demo._errors import DemoError
from sepp_trio.cli.demo._source import Source, chunks_of, digest_rows, find_airports

rows = st.lists(st.tuples(st.integers(0, 5), st.tuples(st.text(max_size=3), st.text(max_size=3))))


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_the_installed_airports_are_read_as_a_table() -> None:
    path, version = find_airports()
    source = Source.read(path)
    assert version
    assert "icao" in source.columns
    assert len(source.rows) > 20_000


def test_a_missing_package_is_one_line_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(DemoError, match=r"pip install 'sepp-trio\[demo\]'") as caught:
        find_airports()
    assert "\n" not in str(caught.value)


def test_fields_stay_the_text_they_are_in_the_file(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'name,lat\n"Ed""s, Field",01.50\nØrland,\n')
    assert Source.read(path) == Source(("name", "lat"), (('Ed"s, Field', "01.50"), ("Ørland", "")))


def test_a_limit_takes_the_first_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "n\n1\n2\n3\n")
    assert Source.read(path, 2).rows == (("1",), ("2",))


def test_a_limit_beyond_the_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "n\n1\n")
    with pytest.raises(DemoError, match=r"--rows 2: a\.csv has 1 rows"):
        Source.read(path, 2)


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n3\n", 'a\n"1'], ids=["empty", "ragged", "cut off"])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(DemoError, match="cannot read"):
        Source.read(write(tmp_path / "a.csv", text))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match="cannot read"):
        Source.read(tmp_path / "none.csv")


@given(st.integers(0, 1000), st.integers(1, 300))
def test_chunks_cover_every_row_once(total: int, size: int) -> None:
    covered = [row for chunk in chunks_of(total, size) for row in range(chunk.start, chunk.stop)]
    assert covered == list(range(total))


@given(rows, rows)
def test_different_rows_have_different_digests(
    one: list[tuple[int, tuple[str, str]]], other: list[tuple[int, tuple[str, str]]]
) -> None:
    assert (digest_rows(one) == digest_rows(other)) == (one == other)
