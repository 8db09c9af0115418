"""The stored state: jobs, where each of them stands, keys and dead letters, in SQLite.

Rows in, rows out; the rules are the engine's. One store object serves one caller at a time; the
file variant may be used from one worker thread after another.

Jobs of equal priority and time are delivered in the order in which they were enqueued. (The real
server goes by their random ids there, so no order is promised; but a program under test on
virtual time, where all jobs have the same time, should not see them shuffled.)
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any, NamedTuple

from sepp_trio.errors import StoreError

from ._database import IN_MEMORY, in_words, open_database
from .config import PersistMode


class StoredJob(NamedTuple):
    """What is needed of a job to move it: the columns that ready, scheduled and leased share.

    ``attempt`` is the number of the delivery that runs, or that comes next. ``rank`` is 0 for
    the highest priority.
    """

    id: bytes
    seq: int
    queue: str
    rank: int
    enqueued_at: int
    attempt: int
    max_attempts: int


class DeadJob(NamedTuple):
    """A dead letter: its place in time, what is known of its end, and the job's message."""

    failed_at: int
    seq: int
    final_attempt: int
    cause: int
    reason: str | None
    body: bytes


class Store:
    """The database of one broker.

    All methods but :meth:`transaction` and :meth:`close` are called inside a transaction.
    """

    def __init__(self, path: str | None = None, persist_mode: PersistMode = "sync_all") -> None:
        """Open or create the file, or a database in memory. Blocks on the disk.

        :raises StoreError: the file cannot be used; says why.
        """
        self._connection = open_database(path, persist_mode)
        self._execute = self._connection.execute
        self._execute_many = self._connection.executemany
        # Rows that were added in this transaction and not yet written.
        self._new_bodies: list[tuple[int, bytes]] = []
        self._new_ready: list[StoredJob] = []
        # Live jobs per queue, and the changes that a rollback has to undo.
        self._depths: dict[str, int] = {}
        self._depth_changes: list[tuple[str, int]] = []
        try:
            self._load()
        except sqlite3.Error as error:
            self.close()
            raise StoreError(path or IN_MEMORY, in_words(error)) from error

    def _load(self) -> None:
        for table in ("ready", "scheduled", "leased"):
            for queue, count in self._execute(f"SELECT queue, count(*) FROM {table} GROUP BY 1"):
                self._depths[queue] = self._depths.get(queue, 0) + count
        self._next_seq: int = self._execute("SELECT ifnull(max(seq), 0) + 1 FROM jobs").fetchone()[
            0
        ]

    def close(self) -> None:
        """Fold the log into the file and let go of it. Blocks on the disk."""
        with contextlib.suppress(sqlite3.Error):
            # The log is complete; if folding it back fails, the next opening will do it.
            self._connection.close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block or nothing of it; durable, by the persist mode, at its end.

        :raises sqlite3.Error: the block, or writing it down, failed; nothing of it was done.
        """
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
            self._flush()
            self._execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        self._depth_changes.clear()

    def _roll_back(self) -> None:
        self._new_bodies.clear()
        self._new_ready.clear()
        for queue, change in self._depth_changes:
            self._shift_depth(queue, -change)
        self._depth_changes.clear()
        # SQLite has already rolled back by itself after some errors.
        if self._connection.in_transaction:
            self._execute("ROLLBACK")

    def _flush(self) -> None:
        """Write the rows added so far, before something reads or moves them."""
        if self._new_bodies:
            self._execute_many("INSERT INTO jobs VALUES (?, ?)", self._new_bodies)
            self._new_bodies.clear()
        if self._new_ready:
            self._execute_many("INSERT INTO ready VALUES (?, ?, ?, ?, ?, ?, ?)", self._new_ready)
            self._new_ready.clear()

    # ---- Depth ----

    def depth(self, queue: str) -> int:
        """Live jobs of a queue: ready, scheduled and leased."""
        return self._depths.get(queue, 0)

    def depths(self) -> dict[str, int]:
        """Live jobs of every queue that has any."""
        return dict(self._depths)

    def _count(self, queue: str, change: int) -> None:
        self._depth_changes.append((queue, change))
        self._shift_depth(queue, change)

    def _shift_depth(self, queue: str, change: int) -> None:
        depth = self._depths.get(queue, 0) + change
        if depth:
            self._depths[queue] = depth
        else:
            self._depths.pop(queue, None)

    # ---- New jobs, ready jobs ----

    def add_job(self, queue: str, body: bytes) -> int:
        """Store a new job's message; returns its number, for the row that says where it stands."""
        seq = self._next_seq
        self._next_seq += 1
        self._new_bodies.append((seq, body))
        self._count(queue, 1)
        return seq

    def add_ready(self, job: StoredJob) -> None:
        """The job waits to be reserved."""
        self._new_ready.append(job)

    def lease(
        self, queue: str, limit: int, expires_at: int, size: int
    ) -> list[tuple[StoredJob, bytes]]:
        """Lease up to ``limit`` ready jobs of a queue, in order; each with its message. No more
        than ``size`` bytes of messages, but one at least."""
        self._flush()
        rows = self._first(
            size,
            "SELECT r.id, r.seq, r.queue, r.rank, r.enqueued_at, r.attempt, r.max_attempts, j.body"
            " FROM ready r CROSS JOIN jobs j ON j.seq = r.seq WHERE r.queue = ?"
            " ORDER BY r.rank, r.enqueued_at, r.seq LIMIT ?",
            (queue, limit),
        )
        if not rows:
            return []
        self._execute_many(
            "DELETE FROM ready WHERE queue = ? AND rank = ? AND enqueued_at = ? AND seq = ?",
            [(row[2], row[3], row[4], row[1]) for row in rows],
        )
        self._execute_many(
            "INSERT INTO leased VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [(*row[:7], expires_at) for row in rows],
        )
        return [(StoredJob._make(row[:7]), row[7]) for row in rows]

    def _first(self, size: int, query: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        """The first rows, no more than ``size`` bytes of their last columns, but one at least."""
        rows: list[tuple[Any, ...]] = []
        cursor = self._execute(query, values)
        for row in cursor:
            size -= len(row[-1])
            if rows and size < 0:
                break
            rows.append(row)
        cursor.close()
        return rows

    # ---- Leased jobs ----

    def leased(self, job_id: bytes, now: int) -> StoredJob | None:
        """The job if it is under a lease that has not ended, swept or not."""
        row = self._execute(
            "SELECT id, seq, queue, rank, enqueued_at, attempt, max_attempts"
            " FROM leased WHERE id = ? AND expires_at > ?",
            (job_id, now),
        ).fetchone()
        return None if row is None else StoredJob._make(row)

    def set_expiry(self, job_id: bytes, expires_at: int) -> None:
        """Move the end of a lease."""
        self._execute("UPDATE leased SET expires_at = ? WHERE id = ?", (expires_at, job_id))

    def end_lease(self, job_id: bytes) -> None:
        """The job is leased no more; the caller says where it goes."""
        self._execute("DELETE FROM leased WHERE id = ?", (job_id,))

    def take_expired(self, now: int, limit: int) -> list[StoredJob]:
        """Remove and return the leased jobs whose lease has ended, longest first; the caller says
        where they go."""
        rows = self._execute(
            "SELECT id, seq, queue, rank, enqueued_at, attempt, max_attempts FROM leased"
            " WHERE expires_at <= ? ORDER BY expires_at LIMIT ?",
            (now, limit),
        ).fetchall()
        self._execute_many("DELETE FROM leased WHERE id = ?", [row[:1] for row in rows])
        return list(map(StoredJob._make, rows))

    # ---- Scheduled jobs ----

    def add_scheduled(self, job: StoredJob, due: int) -> None:
        """The job is to be ready at ``due``."""
        self._execute(
            "INSERT INTO scheduled (id, seq, queue, rank, enqueued_at, attempt, max_attempts, due)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (*job, due),
        )

    def take_due(self, now: int, limit: int) -> list[StoredJob]:
        """Remove and return the scheduled jobs that are due; the caller makes them ready."""
        rows = self._execute(
            "SELECT due, id, seq, queue, rank, enqueued_at, attempt, max_attempts FROM scheduled"
            " WHERE due <= ? ORDER BY due, seq LIMIT ?",
            (now, limit),
        ).fetchall()
        self._execute_many(
            "DELETE FROM scheduled WHERE due = ? AND seq = ?", [(row[0], row[2]) for row in rows]
        )
        return [StoredJob._make(row[1:]) for row in rows]

    # ---- The end of a job ----

    def remove(self, job: StoredJob) -> None:
        """Forget the job; its row elsewhere is gone already."""
        self._execute("DELETE FROM jobs WHERE seq = ?", (job.seq,))
        self._count(job.queue, -1)

    def bury(self, job: StoredJob, failed_at: int, cause: int, reason: str | None) -> None:
        """Keep the job as a dead letter; its row elsewhere is gone already."""
        self._execute(
            "INSERT INTO dead VALUES (?, ?, ?, ?, ?, ?)",
            (failed_at, job.seq, job.queue, job.attempt, cause, reason),
        )
        self._count(job.queue, -1)

    def drain_dead(self, queue: str | None, limit: int, examined: int, size: int) -> list[DeadJob]:
        """Remove and return the oldest dead letters, of all queues or one; at most ``examined``
        are looked at. No more than ``size`` bytes of messages, but one at least."""
        rows = self._first(
            size,
            "SELECT d.failed_at, d.seq, d.final_attempt, d.cause, d.reason, j.body"
            " FROM (SELECT * FROM dead ORDER BY failed_at, seq LIMIT ?) d"
            " CROSS JOIN jobs j ON j.seq = d.seq WHERE ? IS NULL OR d.queue = ? LIMIT ?",
            (examined, queue, queue, limit),
        )
        self._remove_dead([(row[0], row[1]) for row in rows])
        return list(map(DeadJob._make, rows))

    def drop_dead(self, failed_at: int, limit: int) -> int:
        """Forget dead letters not younger than ``failed_at``; returns how many."""
        rows = self._execute(
            "SELECT failed_at, seq FROM dead WHERE failed_at <= ? ORDER BY 1, 2 LIMIT ?",
            (failed_at, limit),
        ).fetchall()
        self._remove_dead(rows)
        return len(rows)

    def _remove_dead(self, keys: list[tuple[int, int]]) -> None:
        self._execute_many("DELETE FROM dead WHERE failed_at = ? AND seq = ?", keys)
        self._execute_many("DELETE FROM jobs WHERE seq = ?", [(seq,) for _, seq in keys])

    # ---- Idempotency keys ----

    def job_with_key(self, queue: str, key: str, now: int) -> bytes | None:
        """The job that has the key, if its window is still open."""
        row = self._execute(
            "SELECT id FROM dedup WHERE queue = ? AND key = ? AND deadline > ?", (queue, key, now)
        ).fetchone()
        return None if row is None else row[0]

    def set_key(self, queue: str, key: str, job_id: bytes, deadline: int) -> None:
        """The job has the key until ``deadline``."""
        self._execute(
            "INSERT OR REPLACE INTO dedup VALUES (?, ?, ?, ?)", (queue, key, job_id, deadline)
        )

    def drop_keys(self, now: int, limit: int) -> int:
        """Forget keys whose window has ended; returns how many."""
        rows = self._execute(
            "SELECT queue, key FROM dedup WHERE deadline <= ? ORDER BY deadline LIMIT ?",
            (now, limit),
        ).fetchall()
        self._execute_many("DELETE FROM dedup WHERE queue = ? AND key = ?", rows)
        return len(rows)

    # ---- All of it ----

    def contents(self) -> list[tuple[str, int | None, int, int | None, str | None, bytes]]:
        """Every job in the order in which it was enqueued: the table in which it stands, when
        something is due there, attempt, cause and reason of a dead letter, message. For tests."""
        self._flush()
        return self._execute(
            "SELECT s.place, s.at, s.attempt, s.cause, s.reason, j.body FROM jobs j JOIN ("
            " SELECT seq, 'ready' AS place, NULL AS at, attempt, NULL AS cause, NULL AS reason"
            " FROM ready"
            " UNION ALL SELECT seq, 'scheduled', due, attempt, NULL, NULL FROM scheduled"
            " UNION ALL SELECT seq, 'leased', expires_at, attempt, NULL, NULL FROM leased"
            " UNION ALL SELECT seq, 'dead', failed_at, final_attempt, cause, reason FROM dead"
            ") s ON s.seq = j.seq ORDER BY j.seq"
        ).fetchall()

    def clear(self) -> None:
        """Forget every job, dead letter and idempotency key. For tests."""
        self._flush()
        for table in ("jobs", "ready", "scheduled", "leased", "dead", "dedup"):
            self._execute(f"DELETE FROM {table}")
        for queue, depth in self.depths().items():
            self._count(queue, -depth)

    # ---- Time ----

    def earliest(self) -> tuple[int | None, int | None, int | None, int | None]:
        """The next schedule, lease end, key end, and the oldest dead letter."""
        row: tuple[int | None, int | None, int | None, int | None] = self._execute(
            "SELECT (SELECT min(due) FROM scheduled), (SELECT min(expires_at) FROM leased),"
            " (SELECT min(deadline) FROM dedup), (SELECT min(failed_at) FROM dead)"
        ).fetchone()
        return row
