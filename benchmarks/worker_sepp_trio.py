"""Run our worker over a queue of jobs; print one JSON line of costs."""

from __future__ import annotations

import trio

import sepp_trio
from sepp_trio import JobCtx, Payload, Worker

from ._measure import waited_ms
from ._worker_arguments import Costs, arguments


async def bench() -> None:
    args = arguments(__doc__ or "")
    async with sepp_trio.open_client(args.address) as client:
        worker = Worker(
            client,
            [args.queue],
            args.lease,
            max_in_flight=args.in_flight,
            auto_extend=args.auto_extend,
        )

        @worker.handler("bench")
        async def handle(payload: Payload | None, ctx: JobCtx) -> None:
            assert payload is not None
            costs.waited.append(waited_ms(payload.data))
            if len(costs.waited) == args.jobs:
                worker.shutdown()
            if args.sleep:
                await trio.sleep(args.sleep)
            costs.handler_ended()

        costs = Costs()
        with trio.fail_after(args.timeout):
            await worker.run()
        costs.report("sepp-trio", args)


if __name__ == "__main__":
    trio.run(bench)
