"""What it costs one worker of ours to hold many jobs: handlers only wait, leases are extended.

Prints a JSON line for each number of jobs: the share of a core while all are held, resident
memory a job, the longest time that the run loop was held up, leases that were lost and jobs
that ran twice.
"""

from __future__ import annotations

import argparse
import collections
import subprocess
import sys
import time

import trio

import sepp_trio
from sepp_trio import JobCtx, Payload, Worker

from ._measure import cpu_seconds, report, resident_mib
from ._server import real_binary, running_server

_STEP = 0.005
"""Seconds between two looks at how late the run loop is."""


async def hold(address: str, jobs: int, lease: float, seconds: float, limit: float) -> None:
    """Hold ``jobs`` jobs for ``seconds``, then let all of them end."""
    release, full = trio.Event(), trio.Event()
    runs: collections.Counter[str] = collections.Counter()
    lost, latest = 0, 0.0

    async def handle(payload: Payload | None, ctx: JobCtx) -> None:
        nonlocal lost
        runs[ctx.id] += 1
        if len(runs) == jobs:
            full.set()
        try:
            await release.wait()
        finally:
            lost += ctx.cancel_reason is not None

    async def look() -> None:
        nonlocal latest
        while True:
            due = time.perf_counter() + _STEP
            await trio.sleep(_STEP)
            latest = max(latest, time.perf_counter() - due)

    async with sepp_trio.open_client(address) as client, trio.open_nursery() as nursery:
        worker = Worker(client, ["bench"], lease, max_in_flight=jobs, auto_extend=True)
        worker.handle("bench", handle)
        idle = resident_mib()
        nursery.start_soon(worker.run)
        with trio.fail_after(limit):
            await full.wait()
        wall, cpu = time.perf_counter(), cpu_seconds()
        await trio.sleep(seconds)
        wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
        extends = worker.statistics().extends
        report(
            jobs=jobs,
            lease_s=lease,
            share_of_core=round(cpu / wall, 4),
            kib_per_job=round((resident_mib() - idle) * 1024 / jobs, 2),
            kib_per_job_peak=round((resident_mib(peak=True) - idle) * 1024 / jobs, 2),
            extends=extends,
        )
        # Apart, because to look so often costs a part of what is measured above.
        with trio.move_on_after(min(seconds, lease / 2)):
            await look()
        release.set()
        worker.shutdown()
    twice = sum(count > 1 for count in runs.values())
    report(late_ms=round(latest * 1000, 1), lost_leases=lost, run_twice=twice)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--server", choices=["real", "embedded", "memory"], help="default: real if found"
    )
    parser.add_argument("--jobs", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--lease", type=float, default=30.0, help="seconds")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to hold them")
    parser.add_argument("--limit", type=float, default=60.0, help="until all are there")
    parser.add_argument("--address", help="hold the jobs of this server; used internally")
    args = parser.parse_args()
    if args.address:
        trio.run(hold, args.address, args.jobs[0], args.lease, args.seconds, args.limit)
        return
    kind = args.server or ("real" if real_binary() else "embedded")
    for jobs in args.jobs:
        with running_server(kind) as server:
            there = ["--address", server.address, "--jobs", str(jobs)]
            subprocess.run(
                [sys.executable, "-m", "benchmarks.fill", *there],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            # A process for each: the memory of one must not count for the next.
            times = ["--lease", str(args.lease), "--seconds", str(args.seconds)]
            times += ["--limit", str(args.limit)]
            subprocess.run(
                [sys.executable, "-m", "benchmarks.many_leases", *there, *times], check=True
            )


if __name__ == "__main__":
    main()
