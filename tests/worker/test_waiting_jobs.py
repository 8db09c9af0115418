"""Jobs that were reserved and cannot start yet keep their leases, whatever auto_extend says."""

from __future__ import annotations

from typing import Any

import trio
from grpclib.const import Status

from sepp_trio import JobCtx, Payload, SeppClient
from sepp_trio.wire import records
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


async def test_a_forced_stop_gives_back_what_waits_for_the_limit_of_its_type(
    sepp: Sepp, client: SeppClient
) -> None:
    worker = worker_on(client, max_in_flight=3)
    worker.handle("t", sleeper(1000), max_in_flight=1)
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        ids = sepp.put(*["t"] * 3)
        await trio.sleep(1)
        assert worker.statistics().in_flight == 3
        worker.shutdown(0)
    assert sorted(nack.job_id for nack in sepp.nacks) == sorted(ids)
    assert worker.statistics().given_back == 3


async def test_a_job_that_is_lost_while_it_waits_is_never_started(
    sepp: Sepp, client: SeppClient
) -> None:
    began: list[str] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        began.append(ctx.id)
        await trio.sleep(20)

    worker = worker_on(client, 9, max_in_flight=2, auto_extend=True)
    worker.handle("t", handler, max_in_flight=1)
    async with running(worker):
        first, second = sepp.put("t", "t")
        await trio.sleep(1)

        async def stolen(request: records.ExtendRequest) -> Any:
            return Status.NOT_FOUND if request.job_id == second else None

        sepp.fail("Extend", *[stolen] * 50)
        await until(lambda: worker.statistics().lost)
        await until(lambda: sepp.acks)
    assert began == [first]
    assert sepp.nacks == []
