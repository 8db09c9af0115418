"""What the demo imports: the airports of the world, as the CSV file inside `airportsdata`.

The file is found without importing the package, read verbatim (every field stays the text it is
in the file), and cut into chunks: one job imports one chunk.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import importlib.util
import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from ._errors import DemoError

if TYPE_CHECKING:
    from collections.abc import Iterable

_PACKAGE = "airportsdata"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows `start` up to, but not including, `stop`; row 0 is the first below the header."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Source:
    """The rows of a CSV file, and what its columns are called."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @classmethod
    def read(cls, path: Path, limit: int | None = None) -> Source:
        """Read the file's first `limit` rows, or all.

        Raises `DemoError` where there is no such file, where it is no CSV table, or where it is
        shorter than `limit`.
        """
        try:
            with path.open(encoding="utf-8", newline="") as file:
                reader = csv.reader(file, strict=True)
                columns = tuple(next(reader, ()))
                rows = tuple(tuple(row) for row in islice(reader, limit))
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise DemoError(f"cannot read {path}: {error}") from error
        if not columns or any(len(row) != len(columns) for row in rows):
            raise DemoError(f"cannot read {path}: not a table with a header and rows of its length")
        if limit is not None and len(rows) < limit:
            raise DemoError(f"--rows {limit}: {path.name} has {len(rows)} rows")
        return cls(columns, rows)

    def digest(self) -> str:
        """SHA-256 over all rows with their numbers, to compare with what was imported."""
        return digest_rows(enumerate(self.rows))


def find_airports() -> tuple[Path, str]:
    """Where the CSV of the installed `airportsdata` is, and that package's version.

    Raises `DemoError`, saying what to install, where it is missing.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise DemoError(
            f"the demo imports the airports of the world and needs {_PACKAGE}: "
            "pip install 'sepp-trio[demo]'"
        )
    return Path(spec.origin).with_name("airports.csv"), importlib.metadata.version(_PACKAGE)


def chunks_of(rows: int, size: int) -> list[Chunk]:
    """Cut `rows` rows into chunks of `size`, the last one shorter if need be."""
    return [Chunk(start, min(start + size, rows)) for start in range(0, rows, size)]


def digest_rows(rows: Iterable[tuple[int, tuple[str, ...]]]) -> str:
    """SHA-256, in hex, over numbered rows in the order given.

    A row enters as JSON on a line of its own, so that no two different tables look alike.
    """
    digest = hashlib.sha256()
    for number, fields in rows:
        digest.update(json.dumps([number, *fields]).encode() + b"\n")
    return digest.hexdigest()
