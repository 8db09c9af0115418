"""The database file: whose it is, what is refused, and that it stays small."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sepp_trio.broker import _database
from sepp_trio.broker.store import Store
from sepp_trio.errors import StoreError
from sepp_trio.wire import records

from .helpers import START, Rig, config, job, ms

PAYLOAD = records.Payload(b"x" * 1000, "raw")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "jobs.db")


def refusal(path: str) -> str:
    """Why a file cannot be opened."""
    with pytest.raises(StoreError) as caught:
        Store(path)
    assert caught.value.path == path
    assert "\n" not in str(caught.value)
    return caught.value.reason


def test_everything_is_there_when_the_file_is_opened_again(path: str) -> None:
    """Trial 62, the orderly half; the other is the crash test."""
    rig = Rig(config(storage={"dead_letter_retention_ms": 10**6}), path)
    ready = rig.add(idempotency_key="k", payload=PAYLOAD)
    leased = rig.add("b", max_attempts=3)
    rig.nack(rig.take("b").id)
    assert rig.take("b", lease=5000).attempt == 2
    later = rig.add("c", scheduled_at=ms(START + 5000))
    dead = rig.add("d")
    rig.nack(rig.take("d").id, dead=True, reason="why")
    rig.reopen()
    assert rig.store.depths() == {"q": 1, "b": 1, "c": 1}
    assert rig.add(idempotency_key="k") == ready
    one = rig.take()
    assert (one.id, one.payload) == (ready, PAYLOAD)
    assert rig.reserve("c") == []
    assert rig.drain()[0].job.id == dead
    rig.ack(leased, 2)
    rig.now += 5000
    assert rig.take("c").id == later
    rig.close()


def test_a_lease_that_ran_out_while_closed_counts_as_an_attempt(path: str) -> None:
    rig = Rig(None, path)
    rig.add()
    rig.take(lease=1000)
    rig.reopen()
    rig.now += 999
    assert rig.reserve() == []
    rig.reopen()
    rig.now += 1
    assert rig.take().attempt == 2
    rig.close()


def test_the_number_of_a_job_is_not_used_again_while_it_matters(path: str) -> None:
    rig = Rig(config(storage={"dead_letter_retention_ms": 10**6}), path)
    rig.add()
    rig.nack(rig.take().id, dead=True)
    rig.reopen()
    rig.add()
    assert rig.take().id != rig.drain()[0].job.id
    rig.close()


# ---- Files that are refused ----


def test_a_second_broker_is_told_that_the_file_is_locked(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_database, "_LOCK_TIMEOUT", 0.05)
    first = Store(path)
    assert "locked" in refusal(path)
    first.close()
    Store(path).close()


def test_another_process_cannot_touch_the_file(path: str) -> None:
    """Trial 60: no call can find the database locked, since nobody else can lock it."""
    rig = Rig(None, path)
    rig.add()
    code = (
        "import sqlite3, sys\n"
        "db = sqlite3.connect(sys.argv[1], timeout=0.1)\n"
        "db.execute('DELETE FROM jobs')"
    )
    other = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert "locked" in other.stderr
    assert rig.take()
    rig.close()


def test_a_file_that_is_no_database_is_left_as_it_is(path: str) -> None:
    for content in (b"hello", b"x" * 5000, b"SQLite format 3\0"):
        Path(path).write_bytes(content)
        assert refusal(path) == "the file is no SQLite database"
        assert Path(path).read_bytes() == content


def test_the_database_of_another_program_is_left_as_it_is(path: str) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE jobs (id)")
    other.close()
    before = Path(path).read_bytes()
    assert refusal(path) == "the file belongs to another program"
    assert Path(path).read_bytes() == before


def test_another_schema_version_is_named(path: str) -> None:
    Store(path).close()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 7")
    database.close()
    assert refusal(path) == "the file has schema version 7; this sepp_trio has 1"


def test_a_damaged_file_is_named_as_such(path: str) -> None:
    rig = Rig(None, path)
    for _ in range(50):
        rig.enqueue(*[job(payload=PAYLOAD)] * 10)
    rig.close()
    size = os.path.getsize(path)
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(os.urandom(size - 4096))
    assert refusal(path) == "the file is damaged"


def test_a_name_that_means_something_to_sqlite_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (":memory:", "file:x?mode=memory"):
        Store(name).close()
    assert sorted(os.listdir()) == [":memory:", "file:x?mode=memory"]


def test_an_empty_file_becomes_a_database(path: str) -> None:
    Path(path).touch()
    Store(path).close()
    Store(path).close()


def test_a_creation_cut_short_is_taken_up_again(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_database, "_SCHEMA", "CREATE TABLE jobs (seq);\nnonsense")
    with pytest.raises(StoreError, match="nonsense"):
        Store(path)
    monkeypatch.undo()
    Store(path).close()


@pytest.mark.parametrize("kind", ["directory", "nothing", "no such directory", "beneath a file"])
def test_a_path_that_cannot_be_used_is_explained(tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").touch()
    path, why = {
        "directory": (tmp_path, "Is a directory"),
        "nothing": ("", "Is a directory"),
        "no such directory": (tmp_path / "a" / "b.db", "does not exist"),
        "beneath a file": (tmp_path / "file" / "b.db", "Not a directory"),
    }[kind]
    assert why in refusal(str(path))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_without_permission_is_explained(path: str) -> None:
    Store(path).close()
    os.chmod(path, 0o400)
    assert "permission denied" in refusal(path)


# ---- Failing writes ----


def full_disk(rig: Rig) -> Callable[[], None]:
    """Let the file grow no more; returns what frees the disk again."""
    execute = rig.store._connection.execute
    pages = execute("PRAGMA page_count").fetchone()[0]
    execute(f"PRAGMA max_page_count = {pages}")

    def free() -> None:
        execute("PRAGMA max_page_count = 1000000")

    return free


def test_a_full_disk_undoes_the_whole_batch(path: str) -> None:
    rig = Rig(None, path)
    rig.add()
    free = full_disk(rig)
    with pytest.raises(sqlite3.OperationalError, match="full"):
        rig.enqueue(*[job(payload=PAYLOAD)] * 100)
    assert rig.store.depths() == {"q": 1}
    taken = rig.take()  # needs no more room
    free()
    rig.enqueue(*[job(payload=PAYLOAD)] * 100)
    rig.ack(taken.id)
    assert rig.store.depths() == {"q": 100}
    rig.reopen()
    assert rig.store.depths() == {"q": 100}
    rig.close()


def test_a_failed_block_leaves_nothing_behind(rig: Rig) -> None:
    rig.add(idempotency_key="k")

    def fail() -> None:
        with rig.store.transaction():
            rig.engine.enqueue_batch([job(idempotency_key="n"), job("r")], rig.now)
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert rig.store.depths() == {"q": 1}
    assert rig.add(idempotency_key="n")
    assert len(rig.reserve("q", "r", max_jobs=9)) == 2


# ---- Size ----


def sizes(path: str) -> tuple[int, int]:
    """Bytes of the file and its log."""
    return os.path.getsize(path), os.path.getsize(f"{path}-wal")


def test_the_file_and_its_log_do_not_grow_with_the_traffic(path: str) -> None:
    rig = Rig(config(storage={"dedup_window_ms": 1000, "dead_letter_retention_ms": 1000}), path)
    # A log of 64 pages is folded back as often in a second as one of 4096 in a minute.
    rig.store._connection.execute("PRAGMA wal_autocheckpoint = 64")

    def traffic() -> None:
        for _ in range(25):
            keyed = [
                job(f"q{i % 4}", payload=PAYLOAD, idempotency_key=f"{rig.now}-{i}")
                for i in range(80)
            ]
            rig.enqueue(*keyed)
            for queue in range(4):
                for place, one in enumerate(rig.reserve(f"q{queue}", max_jobs=20)):
                    if place % 10:
                        rig.ack(one.id)
                    else:
                        rig.nack(one.id, dead=True, reason="r" * 100)
            rig.now += 100

    traffic()
    file, log = sizes(path)
    for _ in range(3):
        traffic()
    later = sizes(path)
    assert later[0] <= file * 1.1
    assert later[1] <= log * 1.5
    rig.close()
    assert not os.path.exists(f"{path}-wal")


def test_nothing_is_compared_row_by_row(rig: Rig) -> None:
    """Every statement finds its rows by an index: its cost does not grow with the table."""
    plans: list[str] = []
    seen: set[str] = set()

    def note(statement: str) -> None:
        seen.add(statement)

    connection = rig.store._connection
    connection.set_trace_callback(note)
    rig.add(idempotency_key="k", scheduled_at=ms(START + 5))
    rig.add(max_attempts=1)
    rig.extend(rig.take().id)
    rig.now += 300_000
    rig.reserve()
    rig.ack(rig.add() and rig.take().id)
    rig.drain("q")
    rig.drain()
    connection.set_trace_callback(None)
    for statement in seen:
        if statement.split()[0] in ("SELECT", "DELETE", "UPDATE", "INSERT"):
            rows = connection.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()
            plans += [row[3] for row in rows]
    assert len(plans) > 10
    # The one scan of a table goes over the dead letters in order and ends at its limit.
    fine = ("SCAN d", "SCAN dead", "SCAN CONSTANT ROW")
    bad = [plan for plan in plans if "SCAN" in plan and plan not in fine]
    assert bad == []
    assert not any("TEMP B-TREE" in plan for plan in plans)
