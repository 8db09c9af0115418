"""A Trio service that keeps its queue inside: HTTP, worker and queue server in one nursery.

    python examples/embedding/service.py [DIRECTORY] [HOST:PORT]

    curl -id 'to be or not to be' localhost:8000/reports   # 202, Location: /reports/ID
    curl localhost:8000/reports/ID                # {"distinct":4,"longest":"not","words":6}

A text is answered as soon as its job is stored, and the worker makes the report. Who repeats the
request with the same `Idempotency-Key`, having heard no answer, gets the same report. SIGTERM or
Ctrl-C drains, a second one ends the program at once; neither loses a job, nor does a crash.
"""

from __future__ import annotations

import json
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from quart import ResponseReturnValue, request
from quart_trio import QuartTrio

from sepp_trio import (
    EnqueueRequest,
    HandlerError,
    JobCtx,
    JobRejectedError,
    Payload,
    SeppClient,
    Worker,
    open_broker,
)

LEASE = 2.0
"""Seconds. Auto-extend keeps it up; the jobs of a process that was killed wait for so long."""


@dataclass(frozen=True, slots=True)
class Report:
    """What there is to know about a text."""

    words: int
    distinct: int
    longest: str


def summarise(text: str) -> Report:
    words = text.lower().split()
    return Report(len(words), len(set(words)), max(words, key=len, default=""))


class Reports:
    """The reports that were asked for, in a file. Blocks on the disk; usable from any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with self._open() as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute(
                "CREATE TABLE IF NOT EXISTS reports (id TEXT PRIMARY KEY, report TEXT)"
            )

    def ask(self, id_: str) -> None:
        """Note that it will come. It may be there already: the worker is quick."""
        with self._open() as database:
            database.execute("INSERT OR IGNORE INTO reports VALUES (?, NULL)", (id_,))

    def store(self, id_: str, report: Report) -> None:
        """The same done twice is the same: so the handler may run twice."""
        with self._open() as database:
            row = (id_, json.dumps(asdict(report)))
            database.execute("INSERT OR REPLACE INTO reports VALUES (?, ?)", row)

    def find(self, id_: str) -> tuple[bool, Report | None]:
        """Was it asked for, and the report if it is there."""
        with self._open() as database:
            row = database.execute("SELECT report FROM reports WHERE id = ?", (id_,)).fetchone()
        return row is not None, Report(**json.loads(row[0])) if row and row[0] else None

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(sqlite3.connect(self._path, timeout=10)) as database, database:
            yield database


def make_app(client: SeppClient, reports: Reports) -> QuartTrio:
    app = QuartTrio(__name__)

    @app.post("/reports")
    async def submit() -> ResponseReturnValue:
        text = await request.get_data(cache=False, as_text=False, parse_form_data=False)
        if not text:
            return {"error": "the body is the text, and it is empty"}, 400
        job = EnqueueRequest(
            "reports",
            "report",
            Payload(text, "text"),
            idempotency_key=request.headers.get("Idempotency-Key"),
        )
        try:
            ack = await client.enqueue(job)
        except JobRejectedError as error:
            return {"error": str(error.rejection)}, 422
        await trio.to_thread.run_sync(reports.ask, ack.job_id)
        return {}, 202, {"Location": f"/reports/{ack.job_id}"}

    @app.get("/reports/<id_>")
    async def show(id_: str) -> ResponseReturnValue:
        asked, report = await trio.to_thread.run_sync(reports.find, id_)
        if report is not None:
            return asdict(report)
        return ({}, 202) if asked else ({"error": "no such report"}, 404)

    return app


async def run_service(
    directory: Path,
    bind: str,
    stop: trio.Event,
    *,
    summarise: Callable[[str], Report] = summarise,
    task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stop` is set, then finish what is under way. Reports its URL when it is ready.

    Whatever arrives while it stops is stored, and done after the next start. If the HTTP server
    or the worker fails, the other one is cancelled, which gives the jobs in hand back.
    """
    reports = Reports(directory / "reports.db")

    def report(payload: Payload | None, ctx: JobCtx) -> None:  # a plain function: in a thread
        if payload is None:
            raise HandlerError.permanent("there is no text")
        reports.store(ctx.id, summarise(payload.data.decode(errors="replace")))

    config = Config()
    config.bind = [bind]
    config.errorlog = None
    async with open_broker(directory / "jobs.db") as broker, broker.open_client() as client:
        # The server is at hand: short waits cost little, and an idle worker stops at once.
        worker = Worker(
            client, ["reports"], LEASE, wait_timeout=0.2, auto_extend=True, handler_timeout=60
        )
        worker.handle("report", report)
        # Inside of the client's block: a worker that is cancelled can still give its jobs back.
        async with trio.open_nursery() as nursery:
            await nursery.start(worker.run)
            http = partial(serve, make_app(client, reports), config, shutdown_trigger=stop.wait)
            [url] = await nursery.start(http)
            task_status.started(url)
            await stop.wait()
            worker.shutdown()


async def main(directory: Path, bind: str) -> None:
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            url = await nursery.start(run_service, directory, bind, stop)
            print("listening on", url, flush=True)
            await anext(signals)
        stop.set()


if __name__ == "__main__":
    trio.run(
        main,
        Path(sys.argv[1] if sys.argv[1:] else "."),
        sys.argv[2] if sys.argv[2:] else "127.0.0.1:8000",
    )
