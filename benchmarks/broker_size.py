"""What an operation of the embedded broker costs against the number of jobs that it holds.

    python -m benchmarks.broker_size [--waiting 1000 100000 1000000]

Each operation is a transaction of its own, on a file, without the sync (which costs the same
whatever the size, see broker_rates): the rules and the database, no network. For each size: that
many jobs wait in 10,000 queues (or as many as there are jobs), a tenth as many again are scheduled
and a tenth leased, 100,000 of each at most. Prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from sepp_trio.broker import BrokerConfig
from sepp_trio.broker.engine import Engine, Lease
from sepp_trio.broker.store import Store
from sepp_trio.broker.validation import ReservePlan
from sepp_trio.wire import records

NOW = 1_700_000_000_000
QUEUES = 10_000
AT_ONCE = 250


class Filled:
    """A broker's engine on a file with so many jobs."""

    def __init__(self, path: str, waiting: int) -> None:
        self.store = Store(path, "buffer")
        self.engine = Engine(self.store, BrokerConfig())
        self.engine.due_at = 2**63 - 1
        self.queues = min(QUEUES, waiting)
        self.leases: list[Lease] = []
        self._numbers = itertools.count()
        aside = min(waiting // 10, 100_000)
        self._fill(waiting + aside, None)
        self._fill(aside, 5000)
        for queue in range(self.queues):
            with self.store.transaction():
                self.leases += self.reserve(f"q{queue}", aside // self.queues or 1)
            if len(self.leases) >= aside:
                break
        random.Random(7).shuffle(self.leases)

    def _fill(self, count: int, within: int | None) -> None:
        for at in range(0, count, AT_ONCE):
            with self.store.transaction():
                jobs = [self.job(within) for _ in range(min(AT_ONCE, count - at))]
                self.engine.enqueue_batch(jobs, NOW)

    def job(self, within: int | None = None) -> records.EnqueueRequest:
        """A job for the next queue; scheduled within so many seconds."""
        number = next(self._numbers)
        at = None if within is None else (NOW // 1000 + 1000 + number * 7919 % within, 0)
        payload = records.Payload(b"x" * 256, "raw")
        return records.EnqueueRequest(
            f"q{number % self.queues}", "t", payload=payload, scheduled_at=at
        )

    def reserve(self, queue: str, jobs: int = 1) -> list[Lease]:
        return self.engine.reserve(ReservePlan((queue,), 0, 300_000 + len(self.leases), jobs), NOW)


def microseconds(filled: Filled, count: int, operation: Callable[[int], object]) -> float:
    """CPU time of one, with its transaction: the median of five parts."""
    parts = []
    for part in range(5):
        began = time.thread_time()
        for at in range(count // 5):
            with filled.store.transaction():
                operation(part * (count // 5) + at)
        parts.append((time.thread_time() - began) / (count // 5) * 1e6)
    return statistics.median(parts)


def measure(path: str, waiting: int) -> dict[str, str]:
    """The figures of one size."""
    began = time.perf_counter()
    filled = Filled(path, waiting)
    engine, leases = filled.engine, filled.leases
    figures = {"jobs in all": f"{sum(filled.store.depths().values()):,}"}
    filling = time.perf_counter() - began
    figures["filled at, jobs/s"] = f"{sum(filled.store.depths().values()) / filling:,.0f}"
    count = min(1000, len(leases) // 3 // 5 * 5)

    def text(lease: Lease) -> str:
        return str(uuid.UUID(bytes=lease.job_id))

    def extend(at: int) -> object:
        request = records.ExtendRequest(text(leases[at]), 1, (300, 0))
        return engine.extend(request, 300_000, NOW + 3)

    def ack(at: int) -> object:
        return engine.ack(records.AckRequest(text(leases[at]), 1), NOW + 3)

    def nack(at: int) -> object:
        retry = records.NackRetry(delay=(500, 0))
        request = records.NackRequest(text(leases[-1 - at]), 1, retry=retry)
        return engine.nack(request, NOW + 4)

    nowhere = tuple(f"z{number}" for number in range(32))
    rows: dict[str, Callable[[int], object]] = {
        "enqueue": lambda _: engine.enqueue_batch([filled.job()], NOW + 1),
        "enqueue, scheduled": lambda _: engine.enqueue_batch([filled.job(5000)], NOW + 1),
        "reserve one": lambda at: filled.reserve(f"q{at * 37 % filled.queues}"),
        "reserve, 32 empty queues": lambda _: engine.reserve(
            ReservePlan(nowhere, 0, 30_000, 1), NOW + 2
        ),
        "extend": extend,
        "ack": ack,
        "nack with a delay": nack,
        "sweep, nothing due": lambda _: engine.sweep(NOW),
    }
    for name, operation in rows.items():
        figures[f"{name}, µs"] = f"{microseconds(filled, count, operation):.0f}"
    figures["sweep, a job that is due, µs"] = f"{sweep(filled):.1f}"
    filled.store.close()
    figures["file, MiB"] = f"{os.path.getsize(path) / 2**20:,.0f}"
    began = time.perf_counter()
    Store(path, "buffer").close()
    figures["opening the file, ms"] = f"{(time.perf_counter() - began) * 1000:,.0f}"
    return figures


def sweep(filled: Filled) -> float:
    """CPU time of a job that is promoted or expires, in sweeps of 2,000 or of all that there is."""
    count = "SELECT (SELECT count(*) FROM scheduled) + (SELECT count(*) FROM leased)"
    execute = filled.store._connection.execute
    before, began = execute(count).fetchone()[0], time.thread_time()
    for _ in range(5):
        with filled.store.transaction():
            filled.engine.sweep(NOW + 10**9)
    spent = time.thread_time() - began
    return spent / (before - execute(count).fetchone()[0]) * 1e6


def main() -> None:
    """Measure by the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiting", type=int, nargs="+", default=[1000, 100_000, 1_000_000])
    options = parser.parse_args()
    columns = []
    for waiting in options.waiting:
        with tempfile.TemporaryDirectory(prefix="sepp-bench-") as directory:
            columns.append(measure(str(Path(directory, "jobs.db")), waiting))
    print("| waiting | " + " | ".join(f"{waiting:,}" for waiting in options.waiting) + " |")
    print("|---|" + "---|" * len(columns))
    for row, (name, _) in enumerate(columns[-1].items()):
        print(f"| {name} | " + " | ".join(list(column.values())[row] for column in columns) + " |")


if __name__ == "__main__":
    main()
