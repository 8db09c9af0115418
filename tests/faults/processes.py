"""Worker processes that are killed or told to stop, and what they have said until then."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from subprocess import PIPE
from typing import NamedTuple

import trio

from sepp_trio import EnqueueAck, EnqueueRequest, ReserveOptions, open_client


class Said(NamedTuple):
    """A line of the program."""

    what: str
    job_id: str
    attempt: int


class WorkerProcess:
    """A running ``tests.faults.program``."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.said: list[Said] = []
        self.errors = b""
        self._heard = trio.Event()

    def of(self, what: str) -> list[Said]:
        """What it said of this kind."""
        return [said for said in self.said if said.what == what]

    async def wait_said(self, what: str, count: int) -> None:
        """Wait until it has said so often of this kind."""
        with trio.move_on_after(40):
            while len(self.of(what)) < count:
                await self._heard.wait()
            return
        raise AssertionError(
            f"not {count} times {what!r} (exit code {self.process.poll()}): {self.said}"
            f" {self.errors.decode()}"
        )

    async def listen(self) -> None:
        """Take in all that it says, until it has ended."""
        rest = b""
        assert self.process.stdout is not None
        async for data in self.process.stdout:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                what, job_id, attempt = line.decode().split()
                self.said.append(Said(what, job_id, int(attempt)))
            self._heard.set()
            self._heard = trio.Event()

    async def listen_to_errors(self) -> None:
        """Take in its log."""
        assert self.process.stderr is not None
        async for data in self.process.stderr:
            self.errors += data


@asynccontextmanager
async def worker_process(address: str, **options: float) -> AsyncIterator[WorkerProcess]:
    """Run the program around the block; it is killed if the block leaves it running.

    All that it has said is there when the block has ended.
    """
    command = [sys.executable, "-m", "tests.faults.program", address]
    for name, value in options.items():
        command += ["--" + name.replace("_", "-"), str(value)]
    process = await trio.lowlevel.open_process(command, stdout=PIPE, stderr=PIPE)
    worker = WorkerProcess(process)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.listen)
        nursery.start_soon(worker.listen_to_errors)
        try:
            yield worker
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()


async def enqueue(address: str, count: int, job_type: str = "t") -> list[str]:
    """Enqueue jobs that may run often; their ids."""
    async with open_client(address) as client:
        request = EnqueueRequest("q", job_type, max_attempts=1000)
        stored = client.enqueue_many([request] * count, batch_size=200)
        return [ack.job_id async for ack in stored if isinstance(ack, EnqueueAck)]


async def take_ready(address: str) -> dict[str, int]:
    """Lease all jobs that wait for a worker now: their attempts by id."""
    ready: dict[str, int] = {}
    options = ReserveOptions(["q"], 600, wait_timeout=0, max_jobs=200)
    async with open_client(address) as client:
        while jobs := await client.reserve(options):
            ready.update((job.id, job.attempt) for job in jobs)
    return ready
