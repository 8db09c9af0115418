"""100,000 jobs from enqueue to ack: none lost, none run twice, memory flat.

One process enqueues and works; the server is a process of its own. Prints a line of
memory figures as it goes, and fails if a job is missing or ran twice.
"""

from __future__ import annotations

import argparse
import collections
import time

import trio

import sepp_trio
from sepp_trio import EnqueueAck, EnqueueRequest, JobCtx, Payload, ReserveOptions, Worker

from ._measure import report, resident_mib
from ._server import real_binary, running_server


async def road(address: str, server_pid: int, jobs: int, in_flight: int) -> None:
    """Produce and work at the same time, then prove that nothing is left and nothing was missed."""
    runs: collections.Counter[int] = collections.Counter()
    finished = trio.Event()
    began = time.perf_counter()
    async with sepp_trio.open_client(address) as client, trio.open_nursery() as nursery:
        worker = Worker(client, ["road"], 30, max_in_flight=in_flight, auto_extend=True)

        @worker.handler("step")
        async def step(payload: Payload | None, ctx: JobCtx) -> None:
            assert payload is not None
            runs[int(payload.data)] += 1
            if len(runs) == jobs:
                finished.set()

        await nursery.start(worker.run)
        requests = (
            EnqueueRequest("road", "step", Payload(str(number).encode(), "text"))
            for number in range(jobs)
        )
        stored = 0
        async for result in client.enqueue_many(requests, batch_size=200):
            assert isinstance(result, EnqueueAck), result
            stored += 1
            if stored % (jobs // 10 or 1) == 0:
                report(
                    enqueued=stored,
                    done=len(runs),
                    worker_mib=round(resident_mib(), 1),
                    server_mib=round(resident_mib(server_pid), 1),
                )
        with trio.fail_after(120):
            await finished.wait()
        worker.shutdown()
    async with sepp_trio.open_client(address) as client:
        left = await client.reserve(ReserveOptions(["road"], 1, wait_timeout=0))
    twice = {number: count for number, count in runs.items() if count != 1}
    report(
        jobs=jobs,
        lost=jobs - len(runs),
        run_twice=len(twice),
        still_queued=len(left),
        seconds=round(time.perf_counter() - began, 1),
        worker_peak_mib=round(resident_mib(peak=True), 1),
        server_peak_mib=round(resident_mib(server_pid, peak=True), 1),
    )
    if left or twice or len(runs) != jobs:
        raise SystemExit("a job was lost or run twice")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--server", choices=["real", "embedded", "memory"], help="default: real if found"
    )
    parser.add_argument("--jobs", type=int, default=100_000)
    parser.add_argument("--in-flight", type=int, default=64)
    args = parser.parse_args()
    kind = args.server or ("real" if real_binary() else "embedded")
    with running_server(kind, persist="sync_all") as server:
        trio.run(road, server.address, server.pid, args.jobs, args.in_flight)


if __name__ == "__main__":
    main()
