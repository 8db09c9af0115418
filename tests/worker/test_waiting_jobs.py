"""Jobs that were reserved and cannot start yet keep their leases, whatever auto_extend says."""

from __future__ import annotations

import trio

from sepp_trio import JobCtx, Payload, SeppClient
from tests.worker.helpers import Sepp, running, sleeper, until, worker_on


async def test_a_job_that_waits_for_the_limit_of_its_type_keeps_its_lease(
    sepp: Sepp, client: SeppClient
) -> None:
    worker = worker_on(client, lease=3.0, max_in_flight=4)
    worker.handle("t", sleeper(2.5), max_in_flight=1)
    async with running(worker):
        ids = sepp.put("t", "t", "t", "t")
        await until(lambda: worker.statistics().acked == 4)
    assert sorted(sepp.acks) == sorted(ids)
    assert worker.statistics().lost == 0


async def test_a_job_is_not_extended_any_more_once_it_runs(sepp: Sepp, client: SeppClient) -> None:
    began: list[float] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(0.01)
        assert 2.9 < ctx.remaining() <= 3.0
        began.append(trio.current_time())
        await trio.sleep(2.0 if len(began) == 1 else 100.0)

    worker = worker_on(client, lease=3.0, max_in_flight=2)
    worker.handle("t", handler, max_in_flight=1)
    async with running(worker):
        sepp.put("t", "t")
        await until(lambda: worker.statistics().lost == 1)
    assert sepp.extend_times
    assert max(sepp.extend_times) <= began[1]
