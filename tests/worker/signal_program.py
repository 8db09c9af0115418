"""A program that is a worker: for the signal tests."""

from __future__ import annotations

import sys

import trio

from sepp_trio import EnqueueRequest, JobCtx, Payload, Worker, open_client, run_until_signal


async def main(address: str, queue: str, jobs: int, seconds: float) -> int:
    async with open_client(address) as client:
        for _ in range(jobs):
            await client.enqueue(EnqueueRequest(queue, "t", max_attempts=50))
        worker = Worker(client, [queue], 60, auto_extend=True, wait_timeout=0.3, max_in_flight=4)

        @worker.handler("t")
        async def handle(payload: Payload | None, ctx: JobCtx) -> None:
            print("start", ctx.id, ctx.attempt, flush=True)
            await trio.sleep(seconds)
            print("end", ctx.id, ctx.attempt, flush=True)

        drained = []

        async def run(*, task_status: trio.TaskStatus[None]) -> None:
            drained.append(await run_until_signal(worker, task_status=task_status))

        async with trio.open_nursery() as nursery:
            await nursery.start(run)
            print("ready", flush=True)
        print("returned", *drained, flush=True)
    return 0 if drained == [True] else 3


if __name__ == "__main__":
    _, address, queue, jobs, seconds = sys.argv
    sys.exit(trio.run(main, address, queue, int(jobs), float(seconds)))
