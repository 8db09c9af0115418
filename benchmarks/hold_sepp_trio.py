"""One worker of ours holds many jobs while their leases are extended; handlers only wait."""

from __future__ import annotations

import gc
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

    async with sepp_trio.open_client(args.address) as client, trio.open_nursery() as nursery:
        worker = Worker(client, ["bench"], args.lease, max_in_flight=args.jobs, auto_extend=True)
        worker.handle("bench", handle)
        costs = Costs(args)
        nursery.start_soon(worker.run)
        with trio.move_on_after(args.limit):
            await full.wait()
        costs.all_there()
        before = worker.statistics().extends
        await trio.sleep(args.seconds)
        costs.held()
        extends = worker.statistics().extends - before
        # Apart, because to look so often costs a part of what is measured above.
        late, late_without_gc = await look(args.seconds)
        release.set()
        worker.shutdown()
    costs.report(late_ms=late, late_without_gc_ms=late_without_gc, extends=extends)


async def look(seconds: float) -> tuple[float, float]:
    """The most milliseconds that a sleep came back late; and without Python's full collections,
    which take the longer the more objects there are, whosever."""
    collecting = began = 0.0

    def collected(phase: str, about: dict[str, int]) -> None:
        nonlocal collecting, began
        if phase == "start":
            began = time.perf_counter()
        elif about["generation"] == 2:
            collecting += time.perf_counter() - began

    latest = latest_without = 0.0
    gc.callbacks.append(collected)
    end = time.perf_counter() + seconds
    while (now := time.perf_counter()) < end:
        collecting = 0.0
        await trio.sleep(_STEP)
        late = time.perf_counter() - now - _STEP
        latest, latest_without = max(latest, late), max(latest_without, late - collecting)
    gc.callbacks.remove(collected)
    return latest * 1e3, latest_without * 1e3


if __name__ == "__main__":
    trio.run(bench)
