"""A producer: a million jobs from a generator, in bounded memory.

    python examples/producer.py [ADDRESS] [JOBS]

The idempotency key makes it safe to run the program again after it was interrupted: what is
stored already is not stored twice.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import trio

from sepp_trio import EnqueueAck, EnqueueRequest, Payload, open_client


def thumbnails(count: int) -> Iterator[EnqueueRequest]:
    for number in range(count):
        yield EnqueueRequest(
            "images",
            "thumbnail",
            Payload.json({"image": number, "width": 200}),
            idempotency_key=f"thumbnail-{number}",
        )


async def main(address: str, jobs: int) -> None:
    stored = known = refused = 0
    async with open_client(address) as client:
        async for result in client.enqueue_many(thumbnails(jobs)):
            if not isinstance(result, EnqueueAck):
                refused += 1
                print("refused:", result)
            elif result.deduplicated:
                known += 1
            else:
                stored += 1
    print(f"{stored} stored, {known} stored before, {refused} refused")


if __name__ == "__main__":
    address = sys.argv[1] if sys.argv[1:] else "localhost:50051"
    trio.run(main, address, int(sys.argv[2]) if sys.argv[2:] else 1_000_000)
