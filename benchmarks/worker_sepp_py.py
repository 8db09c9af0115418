"""Run the official asyncio worker over a queue of jobs; print one JSON line of costs."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from sepp import JobCtx, Payload, SeppClient, Worker

from ._worker_arguments import Costs, arguments


async def bench() -> None:
    args = arguments(__doc__ or "")
    async with await SeppClient.connect(args.address) as client:
        worker = Worker(
            client,
            [args.queue],
            timedelta(seconds=args.lease),
            max_in_flight=args.in_flight,
            auto_extend=args.auto_extend,
        )
        shutdown = worker.shutdown_handle()

        @worker.handler("bench")
        async def handle(payload: Payload | None, ctx: JobCtx) -> None:
            assert payload is not None
            if costs.started(payload.data) == args.jobs:
                shutdown.shutdown()
            if args.sleep:
                began = time.perf_counter()
                await asyncio.sleep(args.sleep)
                costs.slept(began)
            costs.handler_ended()

        costs = Costs()
        async with asyncio.timeout(args.timeout):
            await worker.run()
        costs.report("sepp-py", args)


if __name__ == "__main__":
    asyncio.run(bench())
