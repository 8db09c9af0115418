"""What the tests import, and where to: the first airports of the real file, into a table."""

from __future__ import annotations

import csv
import importlib.util
import itertools
from pathlib import Path

from sepp_trio import JobCtx, Payload

from .importer import COLUMNS, Airports, Importer, Row

ROWS = 200
STEP = 40
JOB = Payload(b"airports.csv", "text")


class Inbox:
    """A directory with the file in it, and the table; `import_file` is the handler."""

    def __init__(self, directory: Path, importer: type[Importer] = Importer) -> None:
        self._importer = importer
        self.directory = directory
        with _airportsdata().open(encoding="utf-8", newline="") as file:
            head = list(itertools.islice(file, 1 + ROWS))
        (directory / "airports.csv").write_text("".join(head), encoding="utf-8")
        self.rows: list[Row] = [
            tuple(record[column] for column in COLUMNS) for record in csv.DictReader(head)
        ]
        self.airports = Airports()

    async def import_file(self, payload: Payload | None, ctx: JobCtx) -> None:
        importer = self._importer(self.directory, self.airports, step=STEP)
        await importer.import_file(payload, ctx)

    def start_over(self) -> None:
        """A table without rows."""
        self.close()
        self.airports = Airports()

    def close(self) -> None:
        self.airports.close()


def _airportsdata() -> Path:
    """The file inside of that package: 28,000 airports."""
    spec = importlib.util.find_spec("airportsdata")
    assert spec is not None, "pip install airportsdata"
    assert spec.origin is not None
    return Path(spec.origin).with_name("airports.csv")
