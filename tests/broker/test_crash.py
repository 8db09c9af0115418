"""SIGKILL under load; crash.py says how, `nox -s crash` goes on for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import crash

ROUNDS = 2


@pytest.mark.slow
async def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    """Trial 62."""
    books = crash.Books()
    await crash.run(tmp_path / "jobs.db", ROUNDS, books)
    assert books.stored
    assert books.acked
