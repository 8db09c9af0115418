"""A service with its queue inside: server, worker and the service's own tasks in one nursery.

    python examples/embedded.py [FILE]

Stop it with Ctrl-C and start it again: what was not done yet is done then.
"""

from __future__ import annotations

import sys

import trio

from sepp_trio import EnqueueRequest, JobCtx, Payload, SeppClient, Worker, open_broker


async def greet(payload: Payload | None, ctx: JobCtx) -> None:
    await trio.sleep(1)
    print("hello,", payload.decode_json() if payload else "stranger")


async def take_orders(client: SeppClient, names: list[str]) -> None:
    for name in names:
        await client.enqueue(EnqueueRequest("greetings", "greet", Payload.json(name)))
        await trio.sleep(0.1)


async def main(path: str) -> None:
    async with (
        open_broker(path) as broker,
        broker.open_client() as client,
        trio.open_nursery() as nursery,
    ):
        worker = Worker(client, ["greetings"], lease_duration=5, auto_extend=True)
        worker.handle("greet", greet, timeout=30)
        await nursery.start(worker.run)
        await take_orders(client, ["Ada", "Grace", "Mary"])
        await trio.sleep(2)  # the service's own life
        worker.shutdown()


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if sys.argv[1:] else "greetings.db")
