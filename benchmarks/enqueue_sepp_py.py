"""Enqueue with the official asyncio client: singly by several callers, and in batches."""

from __future__ import annotations

import asyncio

from sepp import EnqueueAck, EnqueueRequest, Payload, SeppClient

from ._enqueue_arguments import Costs, arguments


async def bench() -> None:
    args = arguments(__doc__ or "")
    payload = Payload(b"x" * args.payload, "application/octet-stream")
    async with await SeppClient.connect(args.address) as client:

        async def enqueue(size: int) -> None:
            jobs = [EnqueueRequest(args.queue, "bench", payload=payload) for _ in range(size)]
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
            async with asyncio.TaskGroup() as group:
                for _ in range(callers):
                    group.create_task(produce())
            costs.end(way, args.jobs // size * size)

        costs = Costs()
        for callers in args.callers:
            await measure(f"callers_{callers}", callers, 1)
        await measure("batch", 1, args.batch)
        costs.report()


if __name__ == "__main__":
    asyncio.run(bench())
