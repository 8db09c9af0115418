"""The size of the embedded broker's file under hours of traffic, in a minute or two.

    python -m benchmarks.broker_traffic [--jobs 500000] [--hours 6]

The engine runs on a file with a clock of its own: so many jobs in so many hours, each with a key
(whose window is an hour), a tenth of them scheduled, some nacked, some left until their lease ends,
some dead-lettered (kept for an hour); about a thousand wait at any time, and once, half way, a
backlog of fifty thousand. Prints the sizes hour by hour, in Markdown.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import tempfile
import uuid
from collections import deque
from pathlib import Path

from sepp_trio.broker import BrokerConfig, StorageConfig
from sepp_trio.broker.engine import Engine, Lease
from sepp_trio.broker.store import Store
from sepp_trio.broker.validation import ReservePlan
from sepp_trio.wire import records

NOW = 1_700_000_000_000
HOUR = 3_600_000
BATCH = 50
WAITING = 1000
BACKLOG = 50_000


class Traffic:
    """Producers and workers of one broker."""

    def __init__(self, path: str) -> None:
        storage = StorageConfig(
            persist_mode="buffer", dedup_window_ms=HOUR, dead_letter_retention_ms=HOUR
        )
        self.path = path
        self.store = Store(path, storage.persist_mode)
        self.engine = Engine(self.store, BrokerConfig(storage=storage))
        self.now = NOW
        self.number = 0
        self.log = 0
        self._dice = random.Random(7)
        self._leased: deque[Lease] = deque()

    def enqueue(self) -> None:
        jobs = []
        for _ in range(BATCH):
            self.number += 1
            at = self.now + self._dice.randrange(60_000) if self._dice.random() < 0.1 else None
            job = records.EnqueueRequest(
                f"q{self.number % 20}",
                "t",
                payload=records.Payload(b"x" * self._dice.randrange(1, 600), "raw"),
                idempotency_key=f"key-{self.number}",
            )
            if at is not None:
                job = dataclasses.replace(job, scheduled_at=(at // 1000, at % 1000 * 1_000_000))
            jobs.append(job)
        self.engine.enqueue_batch(jobs, self.now)

    def work(self) -> None:
        queues = tuple(f"q{number}" for number in self._dice.sample(range(20), 20))
        plan = ReservePlan(queues, 0, 30_000, BATCH + 5)
        for lease in self.engine.reserve(plan, self.now):
            self._settle(lease)

    def _settle(self, lease: Lease) -> None:
        job_id, kind = str(uuid.UUID(bytes=lease.job_id)), self._dice.random()
        if kind < 0.9:
            self.engine.ack(records.AckRequest(job_id, lease.attempt), self.now)
        elif kind < 0.98:
            retry = records.NackRetry(delay=(5, 0))
            if kind > 0.96:
                retry = records.NackRetry(dead_letter=())
            request = records.NackRequest(job_id, lease.attempt, "failed", retry)
            self.engine.nack(request, self.now)

    def run(self, jobs: int, milliseconds: float, *, keep: int) -> None:
        """So many jobs in so much time; work only on what is more than ``keep``."""
        for _ in range(jobs // BATCH):
            self.now += int(milliseconds / (jobs / BATCH))
            with self.store.transaction():
                if self.engine.due_at <= self.now:
                    self.engine.sweep(self.now)
                self.enqueue()
                for _ in range(3):
                    if sum(self.store.depths().values()) > keep:
                        self.work()
            self.log = max(self.log, os.path.getsize(f"{self.path}-wal"))

    def row(self, name: str) -> str:
        count = self.store._connection.execute
        live = sum(self.store.depths().values())
        keys, dead = (
            count(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("dedup", "dead")
        )
        used = (
            count("PRAGMA page_count").fetchone()[0] - count("PRAGMA freelist_count").fetchone()[0]
        )
        page = count("PRAGMA page_size").fetchone()[0]
        file, log, self.log = os.path.getsize(self.path) / 2**20, self.log / 2**20, 0
        return (
            f"| {name} | {self.number:,} | {live:,} | {keys:,} | {dead:,}"
            f" | {file:.1f} | {used * page / 2**20:.1f} | {log:.1f} |"
        )


def main() -> None:
    """Run by the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=500_000)
    parser.add_argument("--hours", type=int, default=6)
    options = parser.parse_args()
    an_hour = options.jobs // options.hours
    print("| hour | jobs so far | live | keys | dead letters | file, MiB | in use | log, at most |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="sepp-bench-") as directory:
        traffic = Traffic(str(Path(directory, "jobs.db")))
        for hour in range(1, options.hours + 1):
            if hour == options.hours // 2 + 1:
                traffic.run(BACKLOG, HOUR / 10, keep=10 * BACKLOG)
                print(traffic.row("backlog"), flush=True)
            traffic.run(an_hour, HOUR, keep=WAITING)
            print(traffic.row(str(hour)), flush=True)
        traffic.store.close()


if __name__ == "__main__":
    main()
