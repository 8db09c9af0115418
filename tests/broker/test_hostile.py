"""Clients of `sepp-trio serve` that are broken or mean harm: the others do not notice.

What the transport does about each frame is shown in tests/transport/test_server_hostile.py; here
it is the whole server as a process: its memory, its jobs, its log, and an honest client beside.
`nox -s hostile` has a hundred times as many of everything.
"""

from __future__ import annotations

import os
import resource
import statistics
import struct
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from sepp_trio import EnqueueRequest, Payload, ReserveOptions, SeppClient, open_client
from sepp_trio.transport.server import ServerConfig
from sepp_trio.wire import encoder_of, records
from tests.cli.helpers import ready_address, started
from tests.transport.hostile import (
    CONTINUATION,
    END_HEADERS,
    HEADERS,
    PREFACE,
    RawClient,
    data,
    frame,
    prefixed,
    reset,
)

SCALE = int(os.environ.get("SEPP_HOSTILE_SCALE", "1"))
RESERVE = "/sepp.v1.QueueService/Reserve"
ENQUEUE = "/sepp.v1.QueueService/EnqueueBatch"
MIB = 2**20

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180 + 4 * SCALE)]


class Victim:
    """A server process, and an honest client of it."""

    def __init__(self, process: subprocess.Popen[str], address: str, client: SeppClient) -> None:
        self.address = address
        self.client = client
        self.waits: list[float] = []
        """How long the honest client waited for each answer."""
        self._process = process
        self._memory = self.memory()

    def memory(self) -> int:
        """MiB that the process has in memory."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) // 1024

    def grown(self) -> int:
        """By how many MiB the process has grown."""
        return self.memory() - self._memory

    async def connect(self, *, polite: bool = True, **settings: int) -> RawClient:
        """A raw connection with its handshake done."""
        client = RawClient(await self.dial(), polite=polite)
        await client.start({4: settings["window"]} if settings else None)
        return client

    async def dial(self) -> trio.SocketStream:
        host, _, port = self.address.rpartition(":")
        return await trio.open_tcp_stream(host, int(port))

    async def stay_honest(self) -> None:
        """Enqueue, reserve and acknowledge for as long as the test runs."""
        while True:
            began = trio.current_time()
            await self.client.enqueue(EnqueueRequest("honest", "t"))
            (job,) = await self.client.reserve(ReserveOptions(["honest"], 60))
            await self.client.ack(job)
            self.waits.append((trio.current_time() - began) / 3)
            await trio.sleep(0.02)


@asynccontextmanager
async def attacked(*arguments: str, log: list[str] | None = None) -> AsyncIterator[Victim]:
    """A server under attack in the block, that must serve its honest client all the time."""
    with started("serve", "--listen", "127.0.0.1:0", *arguments) as process:
        address = ready_address(process)
        async with open_client(address) as client:
            await client.get_server_info()
            victim = Victim(process, address, client)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(victim.stay_honest)
                await trio.sleep(0.1)
                yield victim
                await trio.sleep(0.1)
                nursery.cancel_scope.cancel()
        process.terminate()
        _, errors = await trio.to_thread.run_sync(lambda: process.communicate(timeout=60))
    assert process.returncode == 0
    lines = errors.splitlines()
    print("the log:", *lines[:20], sep="\n")
    print(f"waits: {statistics.median(victim.waits):.4f} s, at most {max(victim.waits):.4f} s")
    assert "Traceback" not in errors
    # One line for a connection at most, and each says whose it is.
    assert all("closed" in line or "no --db" in line for line in lines), errors
    assert len(lines) == len(set(lines))
    assert victim.waits
    # 0.1 s is what we want, and see on a machine of our own. But machines are shared, and thousands
    # of clients hold up this process as well, in which the honest one lives.
    assert statistics.median(victim.waits) < 1
    assert max(victim.waits) < 4 + SCALE / 20
    if log is not None:
        log += lines


def reserve(jobs: int = 1, wait: int = 0) -> bytes:
    request = records.ReserveRequest(["q"], (wait, 0) if wait else None, (250, 0), None, jobs)
    return encoder_of(records.ReserveRequest)(request)


async def fill(client: SeppClient, jobs: int, size: int) -> None:
    request = EnqueueRequest("q", "t", Payload(b"x" * size, "raw"))
    for at in range(0, jobs, 8):
        await client.enqueue_batch([request] * min(8, jobs - at))


async def drained(client: SeppClient) -> list[int]:
    """The attempts of all jobs that can be had."""
    attempts: list[int] = []
    while jobs := await client.reserve(ReserveOptions(["q"], 60, max_jobs=100, wait_timeout=1.5)):
        attempts += [job.attempt for job in jobs]
    return attempts


async def test_reserves_that_are_reset_at_once_lease_nothing() -> None:
    log: list[str] = []
    async with attacked(log=log) as victim:
        await fill(victim.client, 40, 10)
        for _ in range(2 * SCALE):
            client = await victim.connect()
            numbers = [client.new_id() for _ in range(100)]
            await client.send(
                *(client.call(number, RESERVE, reserve()) + reset(number) for number in numbers)
            )
            await client.drained()
            assert client.goaways[0][2] == b"too_many_resets"
            await client.stream.aclose()
        assert await drained(victim.client) == [1] * 40
        assert victim.grown() < 30
    assert sum("too_many_resets" in line for line in log) == 2 * SCALE


async def test_reserves_that_are_reset_while_they_claim_strand_nothing() -> None:
    async with attacked() as victim:
        await fill(victim.client, 40, 10)
        client = await victim.connect(window=0)
        for _ in range(5 * SCALE):
            numbers = [client.new_id() for _ in range(20)]
            try:
                # In two writes: the calls have begun when they are reset.
                await client.send(*(client.call(number, RESERVE, reserve()) for number in numbers))
                await trio.sleep(0.002)
                await client.send(*map(reset, numbers))
            except trio.BrokenResourceError:  # a busy server has read both at once, too often
                await client.stream.aclose()
                client = await victim.connect(window=0)
        await client.stream.aclose()
        assert sorted(await drained(victim.client)) == [1] * 40
        assert victim.grown() < 30


async def test_jobs_for_those_who_do_not_read_are_bounded_and_come_back(tmp_path: Path) -> None:
    async with attacked("--db", str(tmp_path / "jobs.db")) as victim:
        jobs = 120
        await fill(victim.client, jobs, MIB)
        filled = victim.grown()
        clients = [await victim.connect(polite=False, window=0) for _ in range(3)]
        for client in clients:
            await client.send(
                *(client.call(client.new_id(), RESERVE, reserve(10)) for _ in range(20))
            )
        await trio.sleep(1)
        # 10 MiB for each: the first answer, in parts of the way twice.
        assert victim.grown() < filled + 100
        waiting = await victim.client.reserve(ReserveOptions(["q"], 60, max_jobs=20))
        assert len(waiting) == 20
        for client in clients:
            await client.stream.aclose()
        await trio.sleep(0.2)
        attempts = [1] * 20
        while len(attempts) < jobs and (
            more := await victim.client.reserve(
                ReserveOptions(["q"], 60, max_jobs=50, wait_timeout=10)
            )
        ):
            attempts += [job.attempt for job in more]
        assert attempts == [1] * jobs


async def test_an_answer_of_more_than_a_peer_may_have_unread_arrives(tmp_path: Path) -> None:
    async with attacked("--db", str(tmp_path / "jobs.db")) as victim:
        await fill(victim.client, 30, MIB)
        async with open_client(victim.address) as client:
            assert len(await client.reserve(ReserveOptions(["q"], 60, max_jobs=30))) == 30


async def idle(victim: Victim) -> trio.SocketStream:
    return await victim.dial()


async def half_a_preface(victim: Victim) -> trio.SocketStream:
    stream = await victim.dial()
    await stream.send_all(PREFACE[:9])
    return stream


async def half_a_frame(victim: Victim) -> trio.SocketStream:
    client = await victim.connect()
    await client.send(struct.pack(">I", 16000)[1:] + b"\0\0\0\0\0\1" + b"x" * 100)
    assert isinstance(client.stream, trio.SocketStream)
    return client.stream


async def half_a_request(victim: Victim) -> trio.SocketStream:
    client = await victim.connect()
    message = prefixed(b"x" * 60_000)[:-1]
    await client.send(client.head(1, ENQUEUE), data(1, message, end=False))
    assert isinstance(client.stream, trio.SocketStream)
    return client.stream


@pytest.mark.parametrize("habit", [idle, half_a_preface, half_a_frame, half_a_request])
async def test_connections_that_go_no_further_cost_little(
    habit: Callable[[Victim], Awaitable[trio.SocketStream]],
) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Ten less than a server takes: the honest client comes again.
    count = min(100 * SCALE, soft - 200, ServerConfig().max_connections - 10)
    async with attacked() as victim:
        streams: list[trio.SocketStream] = []

        async def some(number: int) -> None:
            for _ in range(number):
                streams.append(await habit(victim))  # noqa: PERF401 - one after the other

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(some, count // 10)
        await trio.sleep(0.2)
        grown = victim.grown()
        print(f"{len(streams)} connections: {grown} MiB")
        # About 40 kB for each, and what it has sent.
        assert grown < 20 + len(streams) * 0.15
        for stream in streams:
            await stream.aclose()


def header_bomb(client: RawClient) -> bytes:
    """A field of 4 kB in the table, and a block that names it 4,000 times."""
    block = b"\x40\x01a\x7f\x81\x1e" + b"x" * 4000 + b"\xbe" * 4000
    return frame(HEADERS, END_HEADERS, client.new_id(), block)


def endless_headers(client: RawClient) -> bytes:
    number = client.new_id()
    more = frame(CONTINUATION, 0, number, b"\x00\x01a\x01b" * 3000)
    return frame(HEADERS, 0, number, b"") + more * 50


def giant_prefix(client: RawClient) -> bytes:
    number = client.new_id()
    return client.head(number, ENQUEUE) + data(number, b"\0\xff\xff\xff\xff" + b"x" * 100_000)


def garbage(client: RawClient) -> bytes:
    return os.urandom(20_000)


@pytest.mark.parametrize("bomb", [header_bomb, endless_headers, giant_prefix, garbage])
async def test_bombs_end_their_own_call_or_connection(bomb: Callable[[RawClient], bytes]) -> None:
    async with attacked() as victim:
        for _ in range(5 * SCALE):
            client = await victim.connect(polite=False)
            try:
                await client.send(bomb(client))
                await client.send(bomb(client))
                with trio.move_on_after(0.05):
                    await client.drained()
            except trio.BrokenResourceError:
                pass  # closed before all of it was out
            await client.stream.aclose()
        assert victim.grown() < 40


async def test_a_flood_of_large_requests_is_read_as_fast_as_it_is_stored(tmp_path: Path) -> None:
    request = EnqueueRequest("flood", "t", Payload(b"x" * MIB, "raw"))
    async with attacked("--db", str(tmp_path / "jobs.db")) as victim:
        grown: list[int] = []

        async def send() -> None:
            await client.enqueue_batch([request] * 8)
            grown.append(victim.grown())

        async with open_client(victim.address) as client, trio.open_nursery() as nursery:
            for _ in range(20 if SCALE == 1 else 60):
                nursery.start_soon(send)
        # 160 MiB and more were sent. 64 MiB may be incomplete; of 64 MiB at work there is what
        # came, what it was taken apart into and what is stored; 64 MiB are SQLite's.
        print(f"at most {max(grown)} MiB")
        assert max(grown) < 5 * 64 + 64
