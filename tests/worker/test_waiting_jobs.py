"""Jobs that were reserved and cannot start yet keep their leases, whatever auto_extend says."""

from __future__ import annotations

import trio

from sepp_trio import JobCtx, Payload
from tests.worker.bench import Bench
from tests.worker.helpers import given_back, running, sleeper, until


async def test_a_job_that_waits_for_the_limit_of_its_type_keeps_its_lease(bench: Bench) -> None:
    worker = bench.worker(lease=3.0, max_in_flight=4)
    worker.handle("t", sleeper(2.5), max_in_flight=1)
    async with running(worker):
        await bench.put("t", "t", "t", "t")
        await bench.settled()
    jobs = bench.jobs()
    assert jobs.acked == jobs
    assert [job.deliveries for job in jobs] == [1] * 4
    assert worker.statistics().lost == 0


async def test_a_job_is_not_extended_any_more_once_it_runs(bench: Bench) -> None:
    began: list[float] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(0.01)
        assert 2.9 < ctx.remaining() <= 3.0
        began.append(trio.current_time())
        await trio.sleep(2.0 if len(began) == 1 else 100.0)

    worker = bench.worker(lease=3.0, max_in_flight=2)
    worker.handle("t", handler, max_in_flight=1)
    async with running(worker):
        await bench.put("t", "t", max_attempts=1)
        await until(lambda: worker.statistics().lost == 1)
    beats = bench.calls.times("Extend")
    assert beats
    assert max(beats) <= began[1]


async def test_a_forced_stop_gives_back_what_waits_for_the_limit_of_its_type(bench: Bench) -> None:
    worker = bench.worker(max_in_flight=3)
    worker.handle("t", sleeper(1000), max_in_flight=1)
    async with running(worker):
        await bench.put(*["t"] * 3)
        await trio.sleep(1)
        assert worker.statistics().in_flight == 3
        worker.shutdown(0)
    assert [given_back(job, "shutdown grace over") for job in bench.jobs()] == [True] * 3
    assert worker.statistics().given_back == 3


async def test_a_job_that_is_lost_while_it_waits_is_never_started(bench: Bench) -> None:
    began: list[str] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        began.append(ctx.id)
        await trio.sleep(20)

    worker = bench.worker(9, max_in_flight=2, auto_extend=True)
    worker.handle("t", handler, max_in_flight=1)
    async with running(worker):
        await bench.put("t", "t", max_attempts=1)
        await trio.sleep(1)
        [second] = bench.jobs().leased.where(lambda job: job.id not in began)
        await bench.lose_lease(second)
        await until(lambda: worker.statistics().lost)
        await bench.settled()
    assert began == [job.id for job in bench.jobs().acked]
    assert len(began) == 1
    assert bench.calls.of("Nack") == ()
