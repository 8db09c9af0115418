"""A worker as a program: it drains on SIGTERM or Ctrl-C, and a second one forces it.

python examples/worker.py [ADDRESS]
"""

from __future__ import annotations

import sys
import time

import trio

from sepp_trio import HandlerError, JobCtx, Payload, Worker, open_client, run_until_signal


async def thumbnail(payload: Payload | None, ctx: JobCtx) -> None:
    """Waiting for something: a coroutine. It is cancelled when the lease is lost."""
    match payload.decode_json() if payload else None:
        case {"image": int(image), "width": int(width)}:
            await trio.sleep(0.01)
            print(f"image {image} is {width} wide now, on attempt {ctx.attempt}")
        case _:
            raise HandlerError.permanent("the payload names no image")


def checksum(payload: Payload | None, ctx: JobCtx) -> None:
    """Computing: a plain function, run in a thread. It asks now and then whether to go on."""
    for _ in range(100):
        trio.from_thread.check_cancelled()
        time.sleep(0.01)
    print("checksum of", ctx.id)


async def main(address: str) -> None:
    async with open_client(address) as client:
        worker = Worker(
            client,
            ["images"],
            lease_duration=30,
            max_in_flight=64,
            auto_extend=True,
            handler_timeout=300,
            shutdown_grace=20,
        )
        worker.handle("thumbnail", thumbnail)
        worker.handle("checksum", checksum, max_in_flight=4)
        await run_until_signal(worker)


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if sys.argv[1:] else "localhost:50051")
