"""A failed job is delivered again at once: the official scenarios take two seconds for it."""

from __future__ import annotations

import time

import pytest
import trio

from sepp_trio import EnqueueRequest, HandlerError, JobCtx, Payload, Worker, open_client
from tests.worker.helpers import running

from .servers import BOTH, running_server


@pytest.mark.parametrize(
    "error", [HandlerError.retry("not now"), RuntimeError("boom")], ids=["handler-error", "error"]
)
@pytest.mark.parametrize("kind", BOTH)
async def test_a_job_that_fails_once_is_done_within_a_fifth_of_a_second(
    kind: str, error: Exception
) -> None:
    took: list[float] = []
    with running_server(kind) as server:
        async with open_client(server.address) as client:
            worker = Worker(client, ["q"], 30, wait_timeout=0.2)
            attempts: list[int] = []
            done = trio.Event()

            @worker.handler("t")
            async def handle(payload: Payload | None, ctx: JobCtx) -> None:
                attempts.append(ctx.attempt)
                if ctx.attempt == 1:
                    raise error
                done.set()

            async with running(worker):
                while len(took) < 30:  # some may be held up by whatever else this machine does
                    done = trio.Event()
                    began = time.perf_counter()
                    await client.enqueue(EnqueueRequest("q", "t"))
                    with trio.fail_after(20):
                        await done.wait()
                    took.append(time.perf_counter() - began)
                    if took[-1] < 0.2:
                        break
    assert attempts == [1, 2] * len(took)
    assert min(took) < 0.2
