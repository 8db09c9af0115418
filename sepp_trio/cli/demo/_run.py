"""The demo from beginning to end: queue server, producer, workers, a crash, and the proof."""

from __future__ import annotations

import tempfile
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from ...client import SeppClient, open_client
from ...errors import ClientError
from ...types import EnqueueAck, ReserveOptions
from .._nursery import plain_nursery
from ._errors import DemoError
from ._events import READY, Event, Tally
from ._jobs import LEASE, QUEUE, jobs_for
from ._processes import lines_of, python_child, stop
from ._report import Report
from ._source import Source, chunks_of, find_airports
from ._target import prove

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._progress import Console

_CHUNK_ROWS = 100
_LISTENING = "listening on "
_WORKER = "sepp_trio.cli.demo._worker"
_QUIET_AFTER_KILL = LEASE + 1.5
"""Seconds after which every job that the killed worker held has been delivered again: its leases,
and a moment for the server to notice and the other worker to take them. A job may come back whose
chunk we know to be in: killed after the commit, before the ack."""


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """What the command line asks for."""

    rows: int | None = None
    """How many rows to import; all when None."""
    database: Path | None = None
    """The file to import into, which must not exist yet; a temporary one when None."""
    crash: bool = True
    """Kill the worker half way."""


async def run_demo(options: DemoOptions, console: Console) -> Report:
    """Run the demo and tell its story on `console`.

    When this is cancelled or fails, all child processes are ended, and all files that it made are
    gone; after success only `options.database` stays.

    Raises:
        DemoError: it could not be run; the message is one line.
    """
    path, version = find_airports()
    source = Source.read(path, options.rows)
    console.line("source", f"{len(source.rows):,} airports, the CSV of airportsdata {version}")
    with tempfile.TemporaryDirectory(prefix="sepp-trio-demo-") as name:
        directory = Path(name)
        with _new_file(options.database or directory / "airports.db") as database:
            report = await _Demo(directory, database, path, source, console).run(options.crash)
    if options.database is not None:
        console.line("database", f"{database}, tables airports and commits")
    return report


@contextmanager
def _new_file(path: Path) -> Iterator[Path]:
    """Make an SQLite file of our own, gone again on failure; nobody else's is ever touched."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError:
        raise DemoError(f"--db {path}: exists already; the demo wants a new file") from None
    except OSError as error:
        raise DemoError(f"--db {path}: {error.strerror}") from error
    try:
        yield path
    except BaseException:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        raise


class _Demo:
    """One run: the pieces that all steps share."""

    def __init__(
        self, directory: Path, database: Path, csv: Path, source: Source, console: Console
    ) -> None:
        self._queue_file = directory / "queue.db"
        self._database = database
        self._csv = csv
        self._source = source
        self._console = console
        self._chunks = chunks_of(len(source.rows), _CHUNK_ROWS)
        self._tally = Tally(len(self._chunks))
        self._quiet_from = -inf

    async def run(self, crash: bool) -> Report:
        started = trio.current_time()
        arguments = ["serve", "--db", str(self._queue_file), "--listen", "127.0.0.1:0"]
        async with python_child("sepp_trio", arguments) as server:
            address = await _ready_address(server)
            self._console.line("server", f"process {server.pid}, sepp-trio serve at {address}")
            jobs_left = 0
            async with plain_nursery() as nursery:
                nursery.start_soon(_watch, server, nursery.cancel_scope)
                try:
                    jobs_left = await self._import(address, crash)
                except ClientError:
                    with trio.move_on_after(1):  # a dead server's connections go before it does
                        await server.wait()
                    if server.returncode is None:
                        raise
                nursery.cancel_scope.cancel()
            if server.returncode is not None:
                raise DemoError(f"the server ended early, with exit code {server.returncode}")
            if code := await stop(server):
                raise DemoError(f"the server ended with exit code {code}")
        proof = await trio.to_thread.run_sync(prove, self._database, self._source, self._chunks)
        return Report(
            proof=proof,
            jobs=len(self._chunks),
            redelivered_chunks=len(self._tally.redelivered),
            redeliveries=self._tally.redeliveries,
            already_committed=len(self._tally.skipped),
            jobs_left=jobs_left,
            seconds=round(trio.current_time() - started, 3),
        )

    async def _import(self, address: str, crash: bool) -> int:
        """Enqueue and work through everything; how many jobs are left?"""
        async with open_client(address) as client:
            await self._enqueue(client)
            if not crash:
                await self._work(address, "worker")
            elif await self._work(address, "worker 1", kill_half_way=True):
                await self._work(address, "worker 2")
            return await _jobs_left(client)

    async def _enqueue(self, client: SeppClient) -> None:
        started = trio.current_time()
        async for result in client.enqueue_many(jobs_for(self._chunks)):
            if not isinstance(result, EnqueueAck):
                raise DemoError(f"the server refused a job: {result}")
        seconds = trio.current_time() - started
        self._console.line(
            "producer",
            f"{len(self._chunks)} jobs of up to {_CHUNK_ROWS} rows, stored in {seconds:.2f} s",
        )

    async def _work(self, address: str, name: str, *, kill_half_way: bool = False) -> bool:
        """Let a worker process import until nothing is left to do; was it killed before?"""
        arguments = [address, str(self._csv), str(self._database)]
        async with python_child(_WORKER, arguments) as process:
            self._console.line(name, f"process {process.pid}, importing")
            killed = False
            async with aclosing(lines_of(process)) as lines:
                if await anext(lines, None) != READY:
                    raise DemoError(f"{name} ended early, with exit code {await stop(process)}")
                with trio.move_on_at(self._enough()) as following:
                    async for line in lines:
                        self._tally.add(Event.parse(line))
                        self._console.progress(self._tally.done, self._tally.total)
                        if kill_half_way and not killed and self._tally.half_way:
                            process.kill()
                            killed = True  # what it said before is in the pipe: read to the end
                        elif not killed:
                            following.deadline = self._enough()
            code = await stop(process)
            if killed:
                self._quiet_from = trio.current_time() + _QUIET_AFTER_KILL
                in_hand = self._tally.worker_died()
                self._console.line(
                    "killed",
                    f"{name}, with {in_hand} chunks begun; their leases run out in {LEASE:.0f} s",
                )
            elif code or not following.cancelled_caught:
                raise DemoError(f"{name} ended early, with exit code {code}")
            return killed

    def _enough(self) -> float:
        """When to stop the worker, by Trio's clock: not before everything is in and quiet."""
        return self._quiet_from if self._tally.complete else inf


async def _ready_address(server: trio.Process) -> str:
    """The address in the server's ready line."""
    async with aclosing(lines_of(server)) as lines:
        async for line in lines:
            return line.removeprefix(_LISTENING)
    raise DemoError(f"the server ended early, with exit code {await server.wait()}")


async def _watch(server: trio.Process, scope: trio.CancelScope) -> None:
    """Workers wait for a server that is gone; the demo must not wait with them."""
    await server.wait()
    scope.cancel(reason="the server has ended")


async def _jobs_left(client: SeppClient) -> int:
    """How many jobs the workers left behind, waiting or dead."""
    waiting = await client.reserve(ReserveOptions([QUEUE], 1, wait_timeout=0, max_jobs=256))
    dead = await client.drain_dead_letters(QUEUE, max_records=256)
    return len(waiting) + len(dead)
