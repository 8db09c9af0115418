"""The demo's worker process: `python -m sepp_trio.cli.demo._worker ADDRESS CSV DATABASE`.

An ordinary worker with one handler. It says on its standard output what it does (see `_events`);
SIGTERM drains it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio

from ...client import open_client
from ...types import Payload
from ...worker import JobCtx, Worker, run_until_signal
from ._events import READY, Event
from ._jobs import JOB_TYPE, LEASE, QUEUE, chunk_in
from ._source import Source
from ._target import Target


async def work(address: str, source: Source, target: Target) -> None:
    """Import chunks until a signal comes."""
    async with open_client(address) as client:
        worker = Worker(client, [QUEUE], LEASE, wait_timeout=0.5, max_in_flight=8, auto_extend=True)
        # SQLite has one writer; whoever waits here waits under its job's heartbeat.
        writing = trio.Lock()

        @worker.handler(JOB_TYPE)
        async def import_chunk(payload: Payload | None, ctx: JobCtx) -> None:
            chunk = chunk_in(payload)
            _say(Event("began", chunk.start, ctx.attempt))
            rows = source.rows[chunk.start : chunk.stop]
            async with writing:
                fresh = await trio.to_thread.run_sync(target.import_chunk, chunk, rows, ctx.attempt)
            _say(Event("committed" if fresh else "skipped", chunk.start, ctx.attempt))

        async with trio.open_nursery() as nursery:
            await nursery.start(run_until_signal, worker)
            print(READY, flush=True)


def _say(event: Event) -> None:
    print(event, flush=True)


def main(address: str, source_path: str, target_path: str) -> None:
    source = Source.read(Path(source_path))
    target = Target(Path(target_path), source.columns)
    try:
        trio.run(work, address, source, target)
    finally:
        target.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
