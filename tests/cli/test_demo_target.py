"""The demo's import is idempotent, all or nothing, and its proof sees when it is not."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sepp_trio.cli.demo._errors import DemoError
from sepp_trio.cli.demo._source import Chunk, Source, chunks_of
from sepp_trio.cli.demo._target import Proof, Target, prove

SOURCE = Source(('na"me', "city"), tuple((f"airport {n}", f"city {n}") for n in range(10)))
CHUNKS = chunks_of(10, 4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "airports.db"


@pytest.fixture
def target(path: Path) -> Iterator[Target]:
    with closing(Target(path, SOURCE.columns)) as target:
        yield target


def put(target: Target, chunk: Chunk, attempt: int = 1) -> bool:
    return target.import_chunk(chunk, SOURCE.rows[chunk.start : chunk.stop], attempt)


def change(path: Path, statement: str) -> Proof:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement)
    return prove(path, SOURCE, CHUNKS)


def test_a_whole_import_is_proven(path: Path, target: Target) -> None:
    for chunk in CHUNKS:
        assert put(target, chunk)
    proof = prove(path, SOURCE, CHUNKS)
    assert proof.holds
    assert (proof.rows, proof.distinct_rows) == (10, 10)
    assert proof.chunks_by_commits == {1: 3}


def test_a_chunk_that_is_there_is_not_written_again(path: Path, target: Target) -> None:
    for attempt in (1, 2, 3):
        for chunk in CHUNKS:
            assert put(target, chunk, attempt) == (attempt == 1)
    assert prove(path, SOURCE, CHUNKS).holds


def test_a_reopened_file_remembers_its_chunks(path: Path, target: Target) -> None:
    put(target, CHUNKS[0])
    with closing(Target(path, SOURCE.columns)) as again:
        assert not put(again, CHUNKS[0], attempt=2)


def test_a_chunk_that_fails_half_way_leaves_nothing(path: Path, target: Target) -> None:
    with pytest.raises(sqlite3.Error):
        target.import_chunk(CHUNKS[0], [*SOURCE.rows[:3], ("too few",)], 1)
    proof = prove(path, SOURCE, CHUNKS)
    assert proof.rows == 0
    assert proof.chunks_by_commits == {0: 3}
    assert put(target, CHUNKS[0], attempt=2)


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM airports WHERE row = 5",
        "INSERT INTO airports SELECT * FROM airports WHERE row = 5",
        "UPDATE airports SET city = 'elsewhere' WHERE row = 5",
        "UPDATE airports SET row = 11 WHERE row = 5",
        "INSERT INTO commits SELECT * FROM commits WHERE start = 4",
        "DELETE FROM commits WHERE start = 4",
        "UPDATE commits SET stop = 7 WHERE start = 4",
    ],
)
def test_the_proof_fails_on_any_difference(path: Path, target: Target, damage: str) -> None:
    for chunk in CHUNKS:
        put(target, chunk)
    assert not change(path, damage).holds


def test_a_file_that_cannot_be_read_back_is_one_line(path: Path) -> None:
    path.write_text("no database, but long enough to be looked at")
    with pytest.raises(DemoError, match=r"cannot read .* back"):
        prove(path, SOURCE, CHUNKS)
