"""Put jobs on a queue, at once in batches or singly at a steady rate."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import trio

import sepp_trio
from sepp_trio import EnqueueAck, EnqueueRequest, Payload

from ._measure import report, stamped_payload


async def fill(
    address: str, queue: str, jobs: int, *, payload: int, rate: float, after: float = 0.0
) -> float:
    """Enqueue ``jobs`` jobs; with ``rate`` that many a second. Gives the seconds it took."""

    def job() -> EnqueueRequest:
        return EnqueueRequest(queue, "bench", Payload(stamped_payload(payload), "bytes"))

    def requests() -> Iterator[EnqueueRequest]:
        for _ in range(jobs):
            yield job()

    async with sepp_trio.open_client(address) as client:
        await trio.sleep(after)
        began = time.perf_counter()
        if rate:
            for number in range(jobs):
                await trio.sleep(max(0.0, began + number / rate - time.perf_counter()))
                await client.enqueue(job())
        else:
            batch = max(1, min(256, 8_000_000 // payload))
            async for result in client.enqueue_many(requests(), batch_size=batch):
                if not isinstance(result, EnqueueAck):
                    raise SystemExit(f"refused: {result}")
        return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--queue", default="bench")
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--payload", type=int, default=200, help="bytes")
    parser.add_argument("--rate", type=float, default=0.0, help="jobs a second; 0: at once")
    parser.add_argument("--after", type=float, default=0.0, help="seconds to wait before")
    args = parser.parse_args()
    shape = {"payload": args.payload, "rate": args.rate, "after": args.after}
    seconds = trio.run(lambda: fill(args.address, args.queue, args.jobs, **shape))
    report(jobs=args.jobs, wall_s=seconds)


if __name__ == "__main__":
    main()
