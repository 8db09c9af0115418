"""SIGKILL under load, again and again on one file: what was acknowledged holds."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from sepp_trio.broker.store import Store
from sepp_trio.client import SeppClient, open_client
from sepp_trio.errors import ClientError, JobNotFoundError
from sepp_trio.types import EnqueueRequest, Payload, ReserveOptions

ROUNDS = int(os.environ.get("SEPP_CRASH_ROUNDS", "3"))

SERVER = """
import sys, trio
from sepp_trio.broker import open_broker

class Ready:
    def started(self, address):
        print(address, flush=True)

async def main():
    async with open_broker(sys.argv[1]) as broker:
        await broker.serve(f"unix:{sys.argv[1]}.sock", task_status=Ready())

trio.run(main)
"""


class Books:
    """What the clients know."""

    def __init__(self) -> None:
        self.keys: dict[str, str] = {}
        self.stored: set[str] = set()
        self.leased: dict[str, int] = {}
        self.acking: set[str] = set()
        self.acked: set[str] = set()


@contextmanager
def server(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that serves the file; killed at the end at the latest."""
    command = [sys.executable, "-c", SERVER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith("unix:")
            yield process
        finally:
            process.kill()


async def produce(client: SeppClient, books: Books) -> None:
    while True:
        key = str(uuid.uuid4())
        request = EnqueueRequest("q", "t", Payload(os.urandom(200), "raw"), idempotency_key=key)
        ack = await client.enqueue(request)
        books.stored.add(ack.job_id)
        books.keys[key] = ack.job_id


async def consume(client: SeppClient, books: Books) -> None:
    options = ReserveOptions(["q"], 250, wait_timeout=5, max_jobs=5)
    while True:
        for job in await client.reserve(options):
            assert job.id not in books.acked
            books.leased[job.id] = job.attempt
            # Every fourth stays leased.
            if random.random() < 0.75:
                books.acking.add(job.id)
                await client.ack(job)
                books.acked.add(job.id)


async def work_until_killed(path: Path, books: Books) -> None:
    async def worker(work: object) -> None:
        try:
            await work(client, books)  # type: ignore[operator]
        except ClientError:
            pass  # the server is gone
        except JobNotFoundError:  # pragma: no cover - would be a lost lease
            raise AssertionError("a lease was lost") from None

    with server(path) as process:
        async with (
            open_client(f"unix:{path}.sock", rpc_timeout=5) as client,
            trio.open_nursery() as nursery,
        ):
            for _ in range(8):
                nursery.start_soon(worker, produce)
                nursery.start_soon(worker, consume)
            await trio.sleep(random.uniform(0.1, 0.6))
            process.send_signal(signal.SIGKILL)
            # What the kernel still holds of its answers comes through, then the errors.
            await trio.sleep(0.3)
            nursery.cancel_scope.cancel()


def check(path: Path, books: Books) -> None:
    """Compare the file with the books."""
    store = Store(str(path))
    connection: sqlite3.Connection = store._connection
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    placed = [
        str(uuid.UUID(bytes=row[0]))
        for table in ("ready", "leased", "scheduled")
        for row in connection.execute(f"SELECT id FROM {table}")
    ]
    there = set(placed)
    assert len(placed) == len(there)
    assert connection.execute("SELECT count(*) FROM jobs").fetchone() == (len(placed),)
    assert not there & books.acked
    assert books.stored - books.acking <= there
    leases = {
        str(uuid.UUID(bytes=row[0])): row[1]
        for row in connection.execute("SELECT id, attempt FROM leased")
    }
    for job_id, attempt in books.leased.items():
        if job_id not in books.acking:
            assert leases[job_id] == attempt
    keys = dict(connection.execute("SELECT key, id FROM dedup").fetchall())
    for key, job_id in books.keys.items():
        assert keys[key] == uuid.UUID(job_id).bytes
    store.close()


@pytest.mark.slow
@pytest.mark.timeout(60 + 20 * ROUNDS)
async def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    """Trial 62. Set SEPP_CRASH_ROUNDS for more rounds."""
    path, books = tmp_path / "jobs.db", Books()
    for _ in range(ROUNDS):
        await work_until_killed(path, books)
        check(path, books)
    assert books.stored
    assert books.acked
