"""The service end to end: real HTTP on the loopback, real files, a process that is killed."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest
import trio

from sepp_trio.testing import Jobs, assert_no_leaks, open_recording_broker

from . import service as program_file
from .service import Report, run_service, summarise

HAMLET = "To be or not to be that is the question"
ABOUT_HAMLET = {"words": 10, "distinct": 8, "longest": "question"}


@dataclass
class Running:
    """A service in this process, and what it takes to talk to it and to stop it."""

    http: httpx.AsyncClient
    stop: trio.Event


@asynccontextmanager
async def running(
    directory: Path,
    bind: str = "127.0.0.1:0",
    summarise: Callable[[str], Report] = summarise,
) -> AsyncIterator[Running]:
    """The service, around a block. At the block's end it is stopped and waited for."""
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        run = partial(run_service, directory, bind, stop, summarise=summarise)
        url = await nursery.start(run)
        async with httpx.AsyncClient(base_url=url) as http:
            yield Running(http, stop)
        stop.set()


class Gate:
    """A summary that waits to be let through: so a test has a job under way for sure."""

    def __init__(self) -> None:
        self.reached = trio.Event()
        self.open = trio.Event()

    def summarise(self, text: str) -> Report:
        trio.from_thread.run_sync(self.reached.set)
        trio.from_thread.run(self.open.wait)  # here a cancel reaches the thread
        return summarise(text)


async def submit(http: httpx.AsyncClient, text: str, key: str | None = None) -> str:
    """Hand a text in. Where its report will be."""
    headers = {"Idempotency-Key": key} if key else {}
    answer = await http.post("/reports", content=text, headers=headers)
    assert answer.status_code == 202, answer.text
    return answer.headers["Location"]


async def report_at(http: httpx.AsyncClient, path: str) -> object:
    """Ask until it is there."""
    with trio.fail_after(20):
        while (answer := await http.get(path)).status_code == 202:  # noqa: ASYNC110
            await trio.sleep(0.02)  # HTTP has no event to wait for
    assert answer.status_code == 200, answer.text
    return answer.json()


async def http_is_gone(http: httpx.AsyncClient) -> None:
    with trio.fail_after(10):
        while True:
            try:
                await http.get("/", headers={"Connection": "close"})
            except httpx.TransportError:
                return


async def jobs_left(directory: Path) -> Jobs:
    """What is in the queue of a service that has ended."""
    async with open_recording_broker(directory / "jobs.db") as broker:
        return broker.jobs()


async def test_a_text_becomes_a_report(tmp_path: Path) -> None:
    async with assert_no_leaks(), running(tmp_path) as service:
        assert await report_at(service.http, await submit(service.http, HAMLET)) == ABOUT_HAMLET
    assert not await jobs_left(tmp_path)


async def test_a_request_repeated_with_its_key_is_one_job(tmp_path: Path) -> None:
    summarised: list[str] = []

    def noting(text: str) -> Report:
        summarised.append(text)
        return summarise(text)

    async with running(tmp_path, summarise=noting) as service:
        first = await submit(service.http, "to be", key="hamlet")
        again = await submit(service.http, "to be", key="hamlet")
        other = await submit(service.http, "or not")
        assert first == again != other
        await report_at(service.http, first)
        await report_at(service.http, other)
    assert sorted(summarised) == ["or not", "to be"]


async def test_bad_requests_are_refused_and_store_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as service:
        empty = await service.http.post("/reports", content="")
        assert (empty.status_code, "empty" in empty.text) == (400, True)
        headers = {"Idempotency-Key": "k" * 2000}
        refused = await service.http.post("/reports", content=HAMLET, headers=headers)
        assert (refused.status_code, "idempotency key" in refused.text) == (422, True)
        assert (await service.http.get("/reports/none")).status_code == 404
    assert not await jobs_left(tmp_path)


async def test_a_stop_finishes_the_job_under_way(tmp_path: Path) -> None:
    gate = Gate()
    async with running(tmp_path, summarise=gate.summarise) as service:
        path = await submit(service.http, HAMLET)
        await gate.reached.wait()
        service.stop.set()
        await http_is_gone(service.http)
        gate.open.set()
    assert not await jobs_left(tmp_path)
    async with running(tmp_path) as service:
        assert await report_at(service.http, path) == ABOUT_HAMLET


async def test_if_http_dies_the_job_in_hand_is_given_back(tmp_path: Path) -> None:
    gate = Gate()
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.RaisesGroup(OSError, flatten_subgroups=True),
    ):
        bind = f"fd://{listener.dup().detach()}"
        async with running(tmp_path, bind, gate.summarise) as service:
            path = await submit(service.http, HAMLET)
            await gate.reached.wait()
            listener.shutdown(socket.SHUT_RDWR)  # the HTTP server's accept fails
            await trio.sleep_forever()
    assert len((await jobs_left(tmp_path)).ready) == 1  # not leased any more
    async with running(tmp_path) as service:
        assert await report_at(service.http, path) == ABOUT_HAMLET


async def test_if_the_worker_dies_its_job_is_given_back(tmp_path: Path) -> None:
    answered = trio.Event()

    def leave(text: str) -> Report:
        trio.from_thread.run(answered.wait)
        raise SystemExit(text)

    with pytest.RaisesGroup(SystemExit, flatten_subgroups=True):
        async with running(tmp_path, summarise=leave) as service:
            path = await submit(service.http, HAMLET)
            answered.set()
            await trio.sleep_forever()
    assert len((await jobs_left(tmp_path)).ready) == 1
    async with running(tmp_path) as service:
        assert await report_at(service.http, path) == ABOUT_HAMLET


@contextmanager
def process(directory: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The service as a program, and its URL."""
    command = [sys.executable, program_file.__file__, str(directory), "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            yield program, program.stdout.readline().removeprefix("listening on ").strip()
        finally:
            program.kill()


async def test_a_kill_loses_no_job_and_sigterm_ends_it_well(tmp_path: Path) -> None:
    with process(tmp_path) as (program, url):
        async with httpx.AsyncClient(base_url=url) as http:
            paths = [await submit(http, HAMLET * (1 + n)) for n in range(20)]
            program.kill()
    with process(tmp_path) as (program, url):
        async with httpx.AsyncClient(base_url=url) as http:
            for n, path in enumerate(paths):
                expected = summarise(HAMLET * (1 + n))
                assert await report_at(http, path) == asdict(expected)
        program.terminate()
        assert await trio.to_thread.run_sync(program.wait, 10) == 0
