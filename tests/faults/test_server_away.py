"""The server is killed or stopped in mid-job and back before the leases end: no job runs twice."""

from __future__ import annotations

from collections import Counter

import pytest
import trio

from sepp_trio import JobCtx, Payload, Worker, open_client
from tests.worker.helpers import until

from .processes import enqueue, take_ready
from .servers import BOTH_DURABLE, running_server

pytestmark = pytest.mark.slow

_JOBS = 16


@pytest.mark.parametrize("back_after", [0.6, 2.5], ids=["in-mid-job", "when-jobs-have-ended"])
@pytest.mark.parametrize("how", ["kill", "stop"])
@pytest.mark.parametrize("kind", BOTH_DURABLE)
async def test_a_server_that_comes_back_in_time_costs_no_job_a_second_run(
    kind: str, how: str, back_after: float
) -> None:
    runs: Counter[str] = Counter()
    probed = trio.Event()
    with running_server(kind) as server:
        ids = await enqueue(server.address, _JOBS)
        async with open_client(server.address) as client:
            worker = Worker(client, ["q"], 30, max_in_flight=32, auto_extend=True, wait_timeout=1)

            @worker.handler("t")
            async def handle(payload: Payload | None, ctx: JobCtx) -> None:
                runs[ctx.id] += 1
                await trio.sleep(2)

            @worker.handler("probe")
            async def probe(payload: Payload | None, ctx: JobCtx) -> None:
                probed.set()

            async with trio.open_nursery() as nursery:
                await nursery.start(worker.run)
                await until(lambda: len(runs) == _JOBS, 20)
                await trio.sleep(0.4)
                if how == "kill":
                    server.kill()
                else:
                    server.terminate()
                    await trio.to_thread.run_sync(server.wait)
                await trio.sleep(back_after)
                await trio.to_thread.run_sync(server.start)
                with trio.fail_after(5):
                    await enqueue(server.address, 1, "probe")
                    await probed.wait()
                await until(lambda: worker.statistics().acked == _JOBS + 1, 20)
                worker.shutdown()
        # Whoever was to run twice would be ready by the end of its lease.
        assert await take_ready(server.address) == {}
    assert runs == dict.fromkeys(ids, 1)
    assert worker.statistics().lost == worker.statistics().unreported == 0
