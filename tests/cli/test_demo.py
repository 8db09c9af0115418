"""The demo as users run it: it proves the import, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from sepp_trio.cli import main
from tests.cli.helpers import is_empty, sepp_trio, session_of, started


@pytest.fixture
def temp(tmp_path: Path) -> Path:
    directory = tmp_path / "temp"
    directory.mkdir()
    return directory


def wait_for(process: subprocess.Popen[str], word: str) -> None:
    """Read the story until a line has the word."""
    assert process.stdout is not None
    for line in process.stdout:
        if word in line:
            return
    pytest.fail(f"no line with {word!r}")


def test_a_killed_worker_s_chunks_come_back_and_every_row_is_there_once(
    tmp_path: Path, temp: Path
) -> None:
    database = tmp_path / "airports.db"
    result = sepp_trio("demo", "--json", "--rows", "5000", "--db", str(database), TMPDIR=str(temp))
    assert result.returncode == 0, result.stderr
    value = json.loads(result.stdout)
    assert value["ok"]
    assert value["jobs"] == 50
    assert value["proof"]["rows"] == value["proof"]["distinct_rows"] == 5000
    assert value["proof"]["chunks_by_commits"] == {"1": 50}
    assert value["redelivered_chunks"] >= 1
    assert "killed" in result.stderr
    with closing(sqlite3.connect(database)) as file:
        assert file.execute("SELECT count(*) FROM airports").fetchone() == (5000,)
        attempts = dict(file.execute("SELECT attempt, count(*) FROM commits GROUP BY 1"))
    assert attempts[2] + value["already_committed"] == value["redelivered_chunks"]
    assert is_empty(temp)


def test_without_a_crash_every_chunk_is_delivered_once(temp: Path) -> None:
    result = sepp_trio("demo", "--no-crash", "--rows", "250", TMPDIR=str(temp))
    assert result.returncode == 0, result.stderr
    assert "250 rows, each there exactly once" in result.stdout
    assert "3 jobs, 0 redelivered" in result.stdout
    assert "killed" not in result.stdout
    assert not result.stderr
    assert is_empty(temp)


def test_one_row_is_enough(temp: Path) -> None:
    result = sepp_trio("demo", "--rows", "1", TMPDIR=str(temp))
    assert result.returncode == 0, result.stderr
    assert "1 rows, each there exactly once" in result.stdout


@pytest.mark.parametrize(
    ("number", "word"),
    [
        (signal.SIGINT, "source"),
        (signal.SIGINT, "server"),
        (signal.SIGINT, "worker 1"),
        (signal.SIGINT, "worker 2"),
        (signal.SIGTERM, "25 %"),
        (signal.SIGHUP, "25 %"),
    ],
)
def test_a_stop_at_any_time_leaves_nothing_behind(
    number: signal.Signals, word: str, tmp_path: Path, temp: Path
) -> None:
    database = tmp_path / "airports.db"
    with started("demo", "--db", str(database), TMPDIR=str(temp)) as process:
        wait_for(process, word)
        os.killpg(process.pid, number)  # as a terminal does it
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 128 + number
        assert not errors
        assert not session_of(process)
    assert is_empty(temp)
    assert not database.exists()


@pytest.mark.parametrize("name", ["server", "worker"])
def test_a_process_that_dies_ends_the_demo_with_one_line(name: str, temp: Path) -> None:
    with started("demo", "--no-crash", TMPDIR=str(temp)) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith(name))
        os.kill(int(line.split("process ")[1].split(",")[0]), signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 1
        who = "the server" if name == "server" else name
        assert errors == f"sepp-trio demo: {who} ended early, with exit code -9\n"
        assert not session_of(process)
    assert is_empty(temp)


def test_a_file_that_is_there_is_not_touched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.db"
    file.write_text("mine")
    assert main(["demo", "--db", str(file)]) == 1
    line = f"sepp-trio demo: --db {file}: exists already; the demo wants a new file\n"
    assert capsys.readouterr().err == line
    assert file.read_text() == "mine"


def test_a_directory_that_is_not_there_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "none" / "airports.db"
    assert main(["demo", "--db", str(file)]) == 1
    line = f"sepp-trio demo: --db {file}: No such file or directory\n"
    assert capsys.readouterr().err == line


def test_more_rows_than_there_are_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--rows", "1000000"]) == 1
    assert capsys.readouterr().err.startswith("sepp-trio demo: --rows 1000000: airports.csv has ")


@pytest.mark.slow
def test_the_whole_file_is_imported_within_its_time() -> None:
    began = time.monotonic()
    result = sepp_trio("demo")
    assert result.returncode == 0, result.stderr
    assert "each there exactly once" in result.stdout
    assert time.monotonic() - began < 60  # 15 s on an idle machine
