"""Enqueue with our client: singly by several callers, in batches, and with enqueue_many."""

from __future__ import annotations

import trio

import sepp_trio
from sepp_trio import EnqueueAck, EnqueueRequest, Payload

from ._enqueue_arguments import Costs, arguments


async def bench() -> None:
    args = arguments(__doc__ or "")
    payload = Payload(b"x" * args.payload, "application/octet-stream")
    async with sepp_trio.open_client(args.address) as client:

        async def enqueue(size: int) -> None:
            jobs = [EnqueueRequest(args.queue, "bench", payload) for _ in range(size)]
            if size == 1:
                await client.enqueue(jobs[0])
                return
            for result in await client.enqueue_batch(jobs):
                if not isinstance(result, EnqueueAck):
                    raise SystemExit(f"refused: {result}")

        async def measure(way: str, callers: int, size: int) -> None:
            calls = iter(range(args.jobs // size))

            async def produce() -> None:
                for _ in calls:
                    await enqueue(size)

            await enqueue(size)  # warm up
            costs.start()
            async with trio.open_nursery() as nursery:
                for _ in range(callers):
                    nursery.start_soon(produce)
            costs.end(way, args.jobs // size * size)

        costs = Costs()
        for callers in args.callers:
            await measure(f"callers_{callers}", callers, 1)
        await measure("batch", 1, args.batch)
        costs.start()
        jobs = (EnqueueRequest(args.queue, "bench", payload) for _ in range(args.jobs))
        async for result in client.enqueue_many(jobs, batch_size=args.batch):
            if not isinstance(result, EnqueueAck):
                raise SystemExit(f"refused: {result}")
        costs.end("many", args.jobs)
        costs.report()


if __name__ == "__main__":
    trio.run(bench)
