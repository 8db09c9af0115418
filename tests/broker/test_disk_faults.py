"""Disks that are full, files that are not what they should be: one clear line, and nothing lost."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from sepp_trio import EnqueueRequest, Payload, ReserveOptions, SeppClient, open_client
from sepp_trio.broker import open_broker
from sepp_trio.errors import ServerInternalError, StoreError
from tests.cli.helpers import ready_address, sepp_trio, started

MIB = 2**20


# ---- A disk that fills while the server works ----


class Disk:
    """A place for a database that can be full."""

    path: Path

    def limit(self, pid: int) -> None:
        """From now on there is little room."""

    def free(self, pid: int) -> None:
        """There is room again."""


class SmallDisk(Disk):
    """A file system of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mount("-t", "tmpfs", "-o", "size=4m", "tmpfs")

    def _mount(self, *arguments: str) -> None:
        command = ["mount", *arguments, str(self.path)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("may not mount")

    def free(self, pid: int) -> None:
        self._mount("-o", "remount,size=64m")

    def close(self) -> None:
        subprocess.run(["umount", "-l", str(self.path)], check=True)


class SmallFiles(Disk):
    """A process whose files may not be large: writes fail like on a disk that is broken."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def limit(self, pid: int) -> None:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (2 * MIB, resource.RLIM_INFINITY))

    def free(self, pid: int) -> None:
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)


@pytest.fixture(params=["disk", "files"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if request.param == "files":
        yield SmallFiles(tmp_path)
        return
    small = SmallDisk(tmp_path)
    try:
        yield small
    finally:
        small.close()


def batch(number: int, jobs: int = 5) -> list[EnqueueRequest]:
    payload = Payload(os.urandom(20_000), "raw")
    return [EnqueueRequest("q", f"{number}", payload) for _ in range(jobs)]


async def fill(client: SeppClient) -> tuple[set[str], int]:
    """Enqueue until it fails; the ids of what is stored, and how often it failed."""
    stored: set[str] = set()
    failures = 0
    for number in range(300):
        try:
            results = await client.enqueue_batch(batch(number))
        except ServerInternalError:
            failures += 1
            if failures == 3:
                break
        else:
            stored |= {result.job_id for result in results}  # type: ignore[union-attr]
    return stored, failures


@pytest.mark.slow
async def test_a_disk_that_fills_fails_calls_until_there_is_room(disk: Disk) -> None:
    arguments = ["serve", "--db", str(disk.path / "jobs.db"), "--listen", "127.0.0.1:0"]
    with started(*arguments) as process:
        disk.limit(process.pid)
        async with open_client(ready_address(process)) as client:
            stored, failures = await fill(client)
            assert failures == 3
            assert stored
            # What needs no disk goes on.
            await client.get_server_info()
            disk.free(process.pid)
            results = await client.enqueue_batch(batch(0))
            stored |= {result.job_id for result in results}  # type: ignore[union-attr]
        process.terminate()
        _, errors = await trio.to_thread.run_sync(lambda: process.communicate(timeout=60))
    lines = [line for line in errors.splitlines() if "rolled back" in line]
    print(errors)
    assert len(lines) == 1
    assert "the disk" in lines[0]
    assert "committed again" in errors
    assert "Traceback" not in errors
    with started(*arguments) as process:
        async with open_client(ready_address(process)) as client:
            there = await take_all(client)
        process.terminate()
        await trio.to_thread.run_sync(process.wait)
    assert sorted(there) == sorted(stored)


def test_a_disk_without_room_for_a_new_file_is_one_line(disk: Disk) -> None:
    if isinstance(disk, SmallFiles):
        pytest.skip("the limit is for processes that run")
    (disk.path / "filler").write_bytes(b"x" * 4 * MIB)
    path = disk.path / "jobs.db"
    assert "the disk is full" in refused(path)
    disk.free(0)
    with started("serve", "--db", str(path), "--listen", "127.0.0.1:0") as process:
        assert ready_address(process)


# ---- Files that cannot be used ----


async def _open(path: Path) -> None:
    async with open_broker(path):
        pass


def refused(path: Path) -> str:
    """Why the file is refused: by open_broker and by `serve`, in the same one line."""
    with pytest.raises(StoreError) as caught:
        trio.run(_open, path)
    ended = sepp_trio("serve", "--db", str(path), "--listen", "127.0.0.1:0")
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1
    assert ended.stderr == f"sepp-trio serve: {caught.value}\n"
    assert str(path) in ended.stderr
    return str(caught.value)


async def _fill(path: Path) -> None:
    async with open_broker(path) as broker, broker.open_client() as client:
        for number in range(40):
            await client.enqueue_batch(batch(number))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with 4 MB of jobs in it."""
    path = tmp_path / "jobs.db"
    trio.run(_fill, path)
    return path


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def another_program(path: Path) -> None:
    path.unlink()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (a)")
    connection.close()


def another_version(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: overwrite(path, 0, b"\0" * 16), "no SQLite database"),
        (lambda path: overwrite(path, 0, b"\xff" * 4096), "no SQLite database"),
        (lambda path: overwrite(path, 100, b"\xff" * 3996), "damaged"),
        (lambda path: os.truncate(path, 50_000), "damaged"),
        (another_program, "another program"),
        (another_version, "version"),
    ],
    ids=["header", "first page", "schema", "cut off", "program", "version"],
)
def test_a_file_that_is_not_ours_or_broken_is_one_line_and_left_alone(
    spoil: Callable[[Path], None], why: str, path: Path
) -> None:
    spoil(path)
    before = path.read_bytes()
    assert why in refused(path)
    assert path.read_bytes() == before


def test_a_file_that_is_in_use_is_one_line(path: Path) -> None:
    with started("serve", "--db", str(path), "--listen", "127.0.0.1:0") as process:
        ready_address(process)
        assert "locked" in refused(path)


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    # Root may write to all but a file system that is read-only.
    directory = tmp_path / "d"
    directory.mkdir()
    mounted = False
    if os.geteuid() == 0:
        command = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(directory)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("may not mount")
        mounted = True
    else:
        directory.chmod(0o500)
    try:
        assert "cannot be" in refused(directory / "jobs.db")
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(directory)], check=True)
        else:
            directory.chmod(0o700)


async def take_all(client: SeppClient) -> list[str]:
    """The ids of all jobs that can be had."""
    ids: list[str] = []
    while jobs := await client.reserve(ReserveOptions(["q"], 60, wait_timeout=0, max_jobs=50)):
        ids += [job.id for job in jobs]
    return ids


@pytest.mark.slow
async def test_pages_that_go_bad_fail_the_calls_that_need_them(path: Path, tmp_path: Path) -> None:
    """Some of the bytes are flipped behind the server's back: no wrong answer, no crash."""
    bad = tmp_path / "bad.db"
    shutil.copy(path, bad)
    size = bad.stat().st_size
    for at in range(8192, size - 4096, 4096):
        overwrite(bad, at, b"\xff" * 16)
    with started("serve", "--db", str(bad), "--listen", "127.0.0.1:0") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if line:  # what it looked at when it started was whole
            async with open_client(line.removeprefix("listening on ").strip()) as client:
                with pytest.raises(ServerInternalError, match="damaged"):
                    await take_all(client)
                await client.get_server_info()
            process.terminate()
        _, errors = await trio.to_thread.run_sync(lambda: process.communicate(timeout=60))
    print(errors)
    assert "damaged" in errors
    assert "Traceback" not in errors
