"""A program that is a worker: says what its handlers do, a line each; signals end it."""

from __future__ import annotations

import argparse
import sys

import trio

from sepp_trio import JobCtx, Payload, Worker, open_client, run_until_signal


def say(what: str, ctx: JobCtx) -> None:
    # One write: Ctrl-C shall not leave half of a line.
    print(f"{what} {ctx.id} {ctx.attempt}\n", end="", flush=True)


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--lease", type=float, default=30.0)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--bare", type=float, default=0.0, help="leave Ctrl-C to Python")
    args = parser.parse_args()
    async with open_client(args.address) as client:
        worker = Worker(client, ["q"], args.lease, auto_extend=True, max_in_flight=args.in_flight)

        @worker.catch_all
        async def handle(payload: Payload | None, ctx: JobCtx) -> None:
            say("start", ctx)
            await trio.sleep(args.seconds)
            say("end", ctx)

        if args.bare:
            await worker.run()
        return 0 if await run_until_signal(worker) else 3


if __name__ == "__main__":
    sys.exit(trio.run(main))
