"""Opening the SQLite database: whose file it is, its schema, its modes, and its errors in words.

In a file: a write-ahead log, exclusive ownership for as long as it is open (no second process can
read or write, so no call ever finds the database locked), and a log that is folded back into the
file every 16 MiB, so that neither grows with the traffic.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import struct
from typing import Final

from sepp_trio.errors import StoreError

from .config import PersistMode

APPLICATION_ID: Final = 0x53457054
SCHEMA_VERSION: Final = 1

# A job is one row of `jobs`, written once and deleted once: its message without what changes from
# delivery to delivery. Exactly one row elsewhere says where the job stands, so that a change of
# state never rewrites a payload. Ready jobs are kept in the order in which they are delivered,
# the others in the order in which something is due. (A primary key of integers stands first in its
# table: else the integrity_check of SQLite 3.40 finds NULLs that are not there.)
_SCHEMA: Final = """
CREATE TABLE jobs (seq INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE ready (
  id BLOB NOT NULL, seq INTEGER NOT NULL, queue TEXT NOT NULL, rank INTEGER NOT NULL,
  enqueued_at INTEGER NOT NULL, attempt INTEGER NOT NULL, max_attempts INTEGER NOT NULL,
  PRIMARY KEY (queue, rank, enqueued_at, seq)
) WITHOUT ROWID;
CREATE TABLE scheduled (
  due INTEGER NOT NULL, seq INTEGER NOT NULL, id BLOB NOT NULL, queue TEXT NOT NULL,
  rank INTEGER NOT NULL, enqueued_at INTEGER NOT NULL, attempt INTEGER NOT NULL,
  max_attempts INTEGER NOT NULL,
  PRIMARY KEY (due, seq)
) WITHOUT ROWID;
CREATE TABLE leased (
  id BLOB NOT NULL PRIMARY KEY, seq INTEGER NOT NULL, queue TEXT NOT NULL, rank INTEGER NOT NULL,
  enqueued_at INTEGER NOT NULL, attempt INTEGER NOT NULL, max_attempts INTEGER NOT NULL,
  expires_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX leased_expires_at ON leased (expires_at);
CREATE TABLE dead (
  failed_at INTEGER NOT NULL, seq INTEGER NOT NULL, queue TEXT NOT NULL,
  final_attempt INTEGER NOT NULL, cause INTEGER NOT NULL, reason TEXT,
  PRIMARY KEY (failed_at, seq)
) WITHOUT ROWID;
CREATE TABLE dedup (
  queue TEXT NOT NULL, key TEXT NOT NULL, id BLOB NOT NULL, deadline INTEGER NOT NULL,
  PRIMARY KEY (queue, key)
) WITHOUT ROWID;
CREATE INDEX dedup_deadline ON dedup (deadline);
"""

_LOG_PAGES: Final = 4096
_CACHE_KIB: Final = 65_536
# How long to wait for another owner to let go, at opening; afterwards there is none.
_LOCK_TIMEOUT: Final = 1.0


IN_MEMORY: Final = "(in memory)"


def open_database(path: str | None, persist_mode: PersistMode) -> sqlite3.Connection:
    """Open or create the database; in memory without a path. Blocks on the disk.

    :raises StoreError: it is locked, damaged, another program's or another version's, or cannot
        be read, written or created.
    """
    if path is not None:
        _check_header(path)
    name = IN_MEMORY if path is None else path
    try:
        connection = sqlite3.connect(
            # Absolute, for some names have a meaning of their own to SQLite.
            ":memory:" if path is None else os.path.abspath(path),
            timeout=_LOCK_TIMEOUT,
            isolation_level=None,
            check_same_thread=False,
        )
    except sqlite3.Error as error:
        raise StoreError(name, _why_not_opened(path, error)) from error
    try:
        _prepare(connection, name)
        if path is not None:
            _make_durable(connection, name, persist_mode)
    except sqlite3.Error as error:
        _close_quietly(connection)
        raise StoreError(name, _why_not_opened(path, error)) from error
    except BaseException:
        _close_quietly(connection)
        raise
    return connection


def in_words(error: sqlite3.Error) -> str:
    """What happened, in a sentence that a person can act on."""
    name = getattr(error, "sqlite_errorname", "")
    for prefix, words in _WORDS.items():
        if name.startswith(prefix):
            return words
    return str(error)


_WORDS: Final = {
    "SQLITE_BUSY": "the file is locked: another process or broker uses it",
    "SQLITE_LOCKED": "the file is locked: another process or broker uses it",
    "SQLITE_FULL": "the disk is full",
    "SQLITE_READONLY": "the file cannot be written",
    "SQLITE_CANTOPEN": "the file cannot be opened",
    "SQLITE_PERM": "the file cannot be written",
    "SQLITE_CORRUPT": "the file is damaged",
    "SQLITE_NOTADB": "the file is no SQLite database",
    "SQLITE_IOERR": "the disk failed to read or write",
}


def _check_header(path: str) -> None:
    """Refuse files that are not ours before SQLite, which may change them, touches them."""
    try:
        with open(os.path.abspath(path), "rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(path, f"the file cannot be read: {error.strerror}") from error
    if not header:
        return
    if len(header) < 100 or not header.startswith(b"SQLite format 3\0"):
        raise StoreError(path, "the file is no SQLite database")
    version, application = struct.unpack_from(">I4xI", header, 60)
    _check_owner(path, application, version)


def _check_owner(path: str, application: int, version: int) -> None:
    if application != APPLICATION_ID:
        raise StoreError(path, "the file belongs to another program")
    if version != SCHEMA_VERSION:
        raise StoreError(
            path,
            f"the file has schema version {version}; this sepp_trio has {SCHEMA_VERSION}",
        )


def _prepare(connection: sqlite3.Connection, name: str) -> None:
    """Take the file, make the tables if it is new, and check that it is ours if it is not."""
    execute = connection.execute
    # Before the first access: then the log's index is in memory, and the file ours alone.
    execute("PRAGMA locking_mode = EXCLUSIVE")
    execute("BEGIN EXCLUSIVE")
    try:
        if execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone() is None:
            for statement in _SCHEMA.split(";\n"):
                execute(statement)
            execute(f"PRAGMA application_id = {APPLICATION_ID}")
            execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        _check_owner(
            name,
            execute("PRAGMA application_id").fetchone()[0],
            execute("PRAGMA user_version").fetchone()[0],
        )
        execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            execute("ROLLBACK")
        raise
    execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    execute("PRAGMA secure_delete = OFF")
    execute("PRAGMA temp_store = MEMORY")


def _make_durable(connection: sqlite3.Connection, name: str, persist_mode: PersistMode) -> None:
    execute = connection.execute
    if execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
        raise StoreError(name, "its file system cannot hold a write-ahead log")
    # FULL syncs the log at each commit; NORMAL only when the log is folded back, so that a loss
    # of power takes the last commits but leaves the file sound.
    execute(f"PRAGMA synchronous = {'NORMAL' if persist_mode == 'buffer' else 'FULL'}")
    execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
    # A log that one giant transaction has blown up is cut back when it is next reused.
    execute(f"PRAGMA journal_size_limit = {4 * _LOG_PAGES * 4096}")


def _why_not_opened(path: str | None, error: sqlite3.Error) -> str:
    """SQLite only says that it could not; say what is wrong with the path."""
    name = getattr(error, "sqlite_errorname", "")
    if path is not None and name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
        directory = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(directory):
            return f"its directory {directory} does not exist"
        if not os.access(directory, os.W_OK) or (
            os.path.exists(path) and not os.access(path, os.W_OK)
        ):
            return "the file cannot be written: permission denied"
    return in_words(error)


def _close_quietly(connection: sqlite3.Connection) -> None:
    with contextlib.suppress(sqlite3.Error):
        connection.close()
