"""One worker of ours holds many jobs while their leases are extended; handlers only wait."""

from __future__ import annotations

import time

import trio

import sepp_trio
from sepp_trio import JobCtx, Payload, Worker

from ._hold_arguments import Costs, arguments

_STEP = 0.005
"""Seconds between two looks at how late the run loop is."""


async def bench() -> None:
    args = arguments(__doc__ or "")
    release, full = trio.Event(), trio.Event()

    async def handle(payload: Payload | None, ctx: JobCtx) -> None:
        if costs.started(ctx.id):
            full.set()
        try:
            await release.wait()
        finally:
            costs.lost += ctx.cancel_reason is not None

    async def look(seconds: float) -> float:
        latest = 0.0
        end = time.perf_counter() + seconds
        while (now := time.perf_counter()) < end:
            await trio.sleep(_STEP)
            latest = max(latest, time.perf_counter() - now - _STEP)
        return latest * 1e3

    async with sepp_trio.open_client(args.address) as client, trio.open_nursery() as nursery:
        worker = Worker(client, ["bench"], args.lease, max_in_flight=args.jobs, auto_extend=True)
        worker.handle("bench", handle)
        costs = Costs(args)
        nursery.start_soon(worker.run)
        with trio.fail_after(args.limit):
            await full.wait()
        costs.all_there()
        before = worker.statistics().extends
        await trio.sleep(args.seconds)
        costs.held()
        extends = worker.statistics().extends - before
        # Apart, because to look so often costs a part of what is measured above.
        late = await look(args.seconds)
        release.set()
        worker.shutdown()
    costs.report(late_ms=late, extends=extends)


if __name__ == "__main__":
    trio.run(bench)
