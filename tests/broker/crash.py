"""SIGKILL under load, again and again on one file: what was acknowledged holds.

    python -m tests.broker.crash --rounds 50

In each round clients enqueue (with keys, some of them for later), reserve and acknowledge, until
the server is killed at a random moment. Then the file is opened and compared with what the clients
know; and in the next round they go on where they were: old leases are acknowledged, requests
without an answer are made again, what was scheduled comes when it is due.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trio

from sepp_trio.broker.store import Store
from sepp_trio.client import SeppClient, open_client
from sepp_trio.errors import ClientError, JobNotFoundError
from sepp_trio.types import EnqueueRequest, Job, Payload, ReserveOptions

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
LONG, SHORT = 250.0, 1.0


@dataclass
class Books:
    """What the clients know, over all rounds."""

    unanswered: dict[str, EnqueueRequest] = field(default_factory=dict)
    """Requests by key, until they are answered."""
    again: list[str] = field(default_factory=list)
    """The keys of those that the round before has left."""
    keys: dict[str, str] = field(default_factory=dict)
    """The job of each key."""
    stored: set[str] = field(default_factory=set)
    due: dict[str, datetime] = field(default_factory=dict)
    """When the scheduled ones may come, at the earliest."""
    leased: dict[str, tuple[Job, float]] = field(default_factory=dict)
    """The latest delivery of each job, and how long its lease was to be."""
    acking: set[str] = field(default_factory=set)
    acked: set[str] = field(default_factory=set)
    expired: int = 0
    """Deliveries that came again because their lease had ended."""
    promoted: int = 0
    resumed: int = 0
    """Acknowledgements of leases from before a kill."""
    repeated: int = 0
    """Requests that were made again after a kill and had been stored before it."""


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
        key, at = str(uuid.uuid4()), None
        if random.random() < 0.2:
            at = datetime.now(UTC) + timedelta(seconds=random.uniform(0.1, 2))
        request = EnqueueRequest(
            "q",
            "t",
            Payload(os.urandom(200), "raw"),
            idempotency_key=key,
            max_attempts=100,
            scheduled_at=at,
        )
        books.unanswered[key] = request
        await store(client, books, key, request)


async def store(
    client: SeppClient, books: Books, key: str, request: EnqueueRequest, *, again: bool = False
) -> None:
    ack = await client.enqueue(request)
    del books.unanswered[key]
    books.repeated += again and ack.deduplicated
    books.stored.add(ack.job_id)
    books.keys[key] = ack.job_id
    if request.scheduled_at is not None:
        books.due[ack.job_id] = request.scheduled_at


async def consume(client: SeppClient, books: Books) -> None:
    while True:
        lease = random.choice([LONG, LONG, SHORT])
        options = ReserveOptions(["q"], lease, wait_timeout=5, max_jobs=5)
        for job in await client.reserve(options):
            receive(job, books, lease)
            # Every fourth stays leased, and those with a short lease come again.
            if lease == LONG and random.random() < 0.75:
                await acknowledge(client, job, books)


def receive(job: Job, books: Books, lease: float) -> None:
    """Check a delivery against the books."""
    now = time.time()
    assert job.id not in books.acked, "an acknowledged job came again"
    if job.id in books.due:
        assert now >= books.due[job.id].timestamp() - 0.05, "a job came before its time"
        books.promoted += 1
    if job.id in books.leased:
        old, _ = books.leased[job.id]
        assert now >= old.lease_expires_at.timestamp() - 0.05, "a job came while it was leased"
        assert job.attempt > old.attempt
        books.expired += 1
    books.leased[job.id] = (job, lease)


async def acknowledge(client: SeppClient, job: Job, books: Books) -> None:
    books.acking.add(job.id)
    await client.ack(job)
    books.acked.add(job.id)


async def resume(client: SeppClient, books: Books) -> None:
    """Ask again what got no answer, and acknowledge some of what was leased before the kill."""
    for key in books.again:
        await store(client, books, key, books.unanswered[key], again=True)
    old = [job for job, lease in books.leased.values() if lease == LONG]
    left = [job for job in old if job.id not in books.acking]
    for job in random.sample(left, min(20, len(left))):
        await acknowledge(client, job, books)
        books.resumed += 1


async def work_until_killed(path: Path, books: Books) -> None:
    """One round."""

    async def worker(work: Callable[[SeppClient, Books], Coroutine[None, None, None]]) -> None:
        try:
            await work(client, books)
        except ClientError:
            pass  # the server is gone
        except JobNotFoundError:
            raise AssertionError("a lease was lost") from None

    books.again = list(books.unanswered)
    with server(path) as process:
        async with (
            open_client(f"unix:{path}.sock", rpc_timeout=5) as client,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(worker, resume)
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
    log_size = Path(f"{path}-wal").stat().st_size
    assert log_size < 64 * 2**20
    store = Store(str(path))
    connection: sqlite3.Connection = store._connection
    problems = connection.execute("PRAGMA integrity_check").fetchall()
    assert problems == [("ok",)], problems
    placed = [
        str(uuid.UUID(bytes=row[0]))
        for table in ("ready", "leased", "scheduled")
        for row in connection.execute(f"SELECT id FROM {table}")
    ]
    there = set(placed)
    assert len(placed) == len(there), "a job stands in two places"
    assert connection.execute("SELECT count(*) FROM jobs").fetchone() == (len(placed),)
    assert not there & books.acked, "an acknowledged job is there"
    assert books.stored - books.acking <= there, "a stored job is lost"
    # A job without an answer may be there, but never twice.
    assert len(there - books.stored) <= len(books.unanswered)
    check_leases(connection, books)
    keys = dict(connection.execute("SELECT key, id FROM dedup").fetchall())
    for key, job_id in books.keys.items():
        assert keys[key] == uuid.UUID(job_id).bytes, "a key is lost"
    store.close()


def check_leases(connection: sqlite3.Connection, books: Books) -> None:
    leases = {
        str(uuid.UUID(bytes=row[0])): row[1]
        for row in connection.execute("SELECT id, attempt FROM leased")
    }
    due = {
        str(uuid.UUID(bytes=row[0])): row[1]
        for row in connection.execute("SELECT id, due FROM scheduled")
    }
    for job_id, (job, lease) in books.leased.items():
        # The server may have given it to somebody else, who never heard of it.
        if lease == LONG and job_id not in books.acking:
            assert leases[job_id] == job.attempt, "a lease is lost"
    for job_id, at in books.due.items():
        if at.timestamp() > time.time() + 0.1 and job_id in due:
            assert due[job_id] == int(at.timestamp() * 1000), "a schedule has moved"


async def finish(path: Path, books: Books) -> None:
    """At the end everything is delivered and acknowledged; what is left is leased to clients
    that never heard of it, because the server was killed with its answer."""
    with server(path):
        async with open_client(f"unix:{path}.sock") as client:
            for key, request in list(books.unanswered.items()):
                await store(client, books, key, request, again=True)
            for job, lease in list(books.leased.values()):
                if lease == LONG and job.id not in books.acking:
                    await acknowledge(client, job, books)
            # Longer than the short leases and the schedules.
            while jobs := await client.reserve(
                ReserveOptions(["q"], LONG, wait_timeout=2.5, max_jobs=250)
            ):
                async with trio.open_nursery() as nursery:
                    for job in jobs:
                        receive(job, books, LONG)
                        nursery.start_soon(acknowledge, client, job, books)
    assert books.stored <= books.acked | books.acking | left_over(path, books)


def left_over(path: Path, books: Books) -> set[str]:
    """The jobs that are left: each is leased, and not by anybody who knows."""
    store = Store(str(path))
    rows = store._connection.execute("SELECT id, attempt FROM leased").fetchall()
    leased = {str(uuid.UUID(bytes=row[0])): row[1] for row in rows}
    assert sum(store.depths().values()) == len(leased), "a job was not delivered"
    for job_id, attempt in leased.items():
        if job_id in books.leased and job_id not in books.acking:
            assert attempt > books.leased[job_id][0].attempt, "a lease was never settled"
    store.close()
    return set(leased)


async def run(path: Path, rounds: int, books: Books) -> None:
    """All rounds, and the end."""
    for _ in range(rounds):
        await work_until_killed(path, books)
        check(path, books)
    await finish(path, books)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run by the command line; gives the exit code."""
    parser = argparse.ArgumentParser(prog="crash", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args(arguments)
    books = Books()
    with tempfile.TemporaryDirectory(prefix="sepp-crash-") as directory:
        path = Path(directory, "jobs.db")
        trio.run(run, path, options.rounds, books)
        size = path.stat().st_size
    print(
        f"{options.rounds} of {options.rounds} rounds clean: {len(books.stored)} jobs stored,"
        f" {len(books.acked)} acknowledged, {books.promoted} deliveries of scheduled jobs,"
        f" {books.expired} after an expired lease, {books.resumed} leases of before a kill"
        f" acknowledged after it, {books.repeated} repeated requests deduplicated;"
        f" the file has {size / 2**20:.1f} MiB"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
