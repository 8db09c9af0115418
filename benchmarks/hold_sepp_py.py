"""The official asyncio worker holds many jobs while their leases are extended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from datetime import timedelta

from sepp import JobCtx, Payload, SeppClient, Worker

from ._hold_arguments import Costs, arguments


async def bench() -> None:
    args = arguments(__doc__ or "")
    logging.disable(logging.CRITICAL)
    release, full = asyncio.Event(), asyncio.Event()
    async with await SeppClient.connect(args.address) as client:
        lease = timedelta(seconds=args.lease)
        worker = Worker(client, ["bench"], lease, max_in_flight=args.jobs, auto_extend=True)
        costs = Costs(args)

        @worker.handler("bench")
        async def handle(payload: Payload | None, ctx: JobCtx) -> None:
            if costs.started(ctx.id):
                full.set()
            try:
                await release.wait()
            except asyncio.CancelledError:
                costs.lost += 1
                raise

        running = asyncio.create_task(worker.run())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(args.limit):
                await full.wait()
        costs.all_there()
        await asyncio.sleep(args.seconds)
        costs.held()
        costs.report()
        release.set()
        worker.shutdown_handle().shutdown()
        await asyncio.wait({running}, timeout=args.limit)


if __name__ == "__main__":
    asyncio.run(bench())
