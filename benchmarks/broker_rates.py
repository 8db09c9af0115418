"""Enqueue and drain rates of the embedded server beside the real one's, on one disk, in one run.

    python -m benchmarks.broker_rates [--jobs 20000] [--in-flight 64]

Each server is a process with a new file; the client is ours, in a process of its own, one
connection. Enqueue: so many single enqueues of 256 bytes in flight. Drain: so many workers that
reserve one job and acknowledge it. The CPU of the server is counted for both. Servers take turns,
round by round. Prints a table in Markdown: median (least-greatest).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

import trio

from benchmarks._measure import cpu_seconds, report, spread
from benchmarks._server import real_binary, running_server
from sepp_trio import EnqueueRequest, Payload, ReserveOptions, SeppClient, open_client

SERVERS = (
    ("embedded, file, full sync", "embedded", "sync_all"),
    ("embedded, file, buffer", "embedded", "buffer"),
    ("embedded, memory", "memory", "buffer"),
    ("real, sync_all", "real", "sync_all"),
    ("real, buffer", "real", "buffer"),
)


async def enqueue(client: SeppClient, jobs: int, in_flight: int) -> float:
    """Seconds that it takes."""
    left = iter(range(jobs))
    request = EnqueueRequest("bench", "t", Payload(b"x" * 256, "raw"))

    async def produce() -> None:
        for _ in left:
            await client.enqueue(request)

    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(in_flight):
            nursery.start_soon(produce)
    return time.perf_counter() - began


async def drain(client: SeppClient, jobs: int, in_flight: int) -> float:
    """Seconds that it takes."""
    left = jobs
    options = ReserveOptions(["bench"], 300, wait_timeout=0)

    async def consume() -> None:
        nonlocal left
        while taken := await client.reserve(options):
            for job in taken:
                await client.ack(job)
                left -= 1

    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(in_flight):
            nursery.start_soon(consume)
    assert left == 0, f"{left} jobs are missing"
    return time.perf_counter() - began


async def load(address: str, jobs: int, in_flight: int) -> None:
    """The client's process."""
    async with open_client(address) as client:
        await client.get_server_info()
        first = await enqueue(client, jobs, in_flight)
        second = await drain(client, jobs, in_flight)
    report(enqueue=jobs / first, drain=jobs / second, client_cpu=cpu_seconds() / jobs * 1e6)


def measure(kind: str, persist: str, jobs: int, in_flight: int) -> dict[str, float]:
    """One round with one server."""
    with running_server(kind, persist=persist) as server:
        command = [sys.executable, "-m", "benchmarks.broker_rates", "--address", server.address]
        command += ["--jobs", str(jobs), "--in-flight", str(in_flight)]
        before = server.cpu_seconds()
        output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
        figures: dict[str, float] = json.loads(output.stdout)
        figures["server_cpu"] = (server.cpu_seconds() - before) / jobs * 1e6
    return figures


def main() -> None:
    """Measure by the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.address:
        trio.run(load, options.address, options.jobs, options.in_flight)
        return
    servers = [server for server in SERVERS if server[1] != "real" or real_binary()]
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name, _, _ in servers}
    for _ in range(options.rounds):
        for name, kind, persist in servers:
            rounds[name].append(measure(kind, persist, options.jobs, options.in_flight))
    print(f"{options.jobs:,} jobs, {options.in_flight} in flight, {options.rounds} rounds\n")
    print("| server | enqueue/s | drain/s | server CPU, µs a job | client CPU, µs a job |")
    print("|---|---|---|---|---|")
    for name, figures in rounds.items():
        columns = ("enqueue", "drain", "server_cpu", "client_cpu")
        cells = [spread([figure[column] for figure in figures]) for column in columns]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
