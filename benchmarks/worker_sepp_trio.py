"""Run our worker over a queue of jobs; print one JSON line of costs."""

from __future__ import annotations

import time

import trio

import sepp_trio
from sepp_trio import JobCtx, Payload, Worker

from ._worker_arguments import Costs, arguments

_WAIT = 0.5
"""Seconds that a reserve waits, and so the end of the run, which costs next to no CPU."""


async def bench() -> None:
    args = arguments(__doc__ or "")
    async with sepp_trio.open_client(args.address) as client, trio.open_nursery() as nursery:
        worker = Worker(
            client,
            [args.queue],
            args.lease,
            wait_timeout=_WAIT,
            max_in_flight=args.in_flight,
            auto_extend=args.auto_extend,
        )

        async def note_last_ack() -> None:
            # No event tells of it, and by now all but the last few jobs are through.
            while worker.statistics().acked < args.jobs:  # noqa: ASYNC110
                await trio.sleep(0.001)
            costs.acked()

        @worker.handler("bench")
        async def handle(payload: Payload | None, ctx: JobCtx) -> None:
            assert payload is not None
            if costs.started(payload.data) == args.jobs:
                worker.shutdown()
                nursery.start_soon(note_last_ack)
            if args.sleep:
                began = time.perf_counter()
                await trio.sleep(args.sleep)
                costs.slept(began)
            costs.handler_ended()

        costs = Costs()
        with trio.fail_after(args.timeout):
            await worker.run()
        costs.report("sepp-trio", args)


if __name__ == "__main__":
    trio.run(bench)
