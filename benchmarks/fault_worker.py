"""A worker that reports events as JSON lines for fault scripts; stdin takes "shutdown", "count"."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import threading

import trio

import sepp_trio
from sepp_trio import JobCtx, Payload, Worker


def say(event: str, job_id: str = "", attempt: int = 0, **more: object) -> None:
    # One write a line: stdin has a thread of its own, which says things as well.
    print(
        json.dumps({"e": event, "id": job_id, "attempt": attempt, **more}) + "\n",
        end="",
        flush=True,
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--lease", type=float, default=30.0)
    parser.add_argument("--in-flight", type=float, default=16)
    for name in ("auto-extend", "sleep", "jitter", "swallow"):
        parser.add_argument("--" + name, type=float, default=0.0)
    args = parser.parse_args()
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    async with sepp_trio.open_client(args.address) as client:
        worker = Worker(
            client,
            ["q"],
            args.lease,
            max_in_flight=int(args.in_flight),
            auto_extend=bool(args.auto_extend),
        )

        @worker.catch_all
        async def handle(payload: Payload | None, ctx: JobCtx) -> None:
            say("start", ctx.id, ctx.attempt)
            if ctx.job_type != "probe":
                try:
                    await trio.sleep(args.sleep + args.jitter * (hash(ctx.id) % 1000) / 1000)
                except trio.Cancelled:
                    say("cancelled", ctx.id, ctx.attempt)
                    if not args.swallow:
                        raise
                    with trio.CancelScope(shield=True):
                        await trio.sleep(args.swallow)
            say("end", ctx.id, ctx.attempt)

        stop = worker.shutdown_handle()

        def obey() -> None:
            for line in sys.stdin:
                if line.strip() == "shutdown":
                    say("shutdown")
                    stop.shutdown()
                elif line.strip() == "count":
                    say("extends", n=worker.statistics().extends)

        threading.Thread(target=obey, daemon=True).start()
        say("ready")
        await worker.run()
        say("returned", n=worker.statistics().extends)


if __name__ == "__main__":
    trio.run(main)
