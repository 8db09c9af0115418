"""``hold`` by several tasks, beside a client that ends, and with jobs that are none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import trio

from sepp_trio import (
    ClientClosedError,
    JobNotFoundError,
    LeaseLostError,
    ReserveOptions,
    SeppClient,
    open_client,
)
from sepp_trio.testing import Fail
from tests.worker.bench import Bench


async def reserve_one(bench: Bench, lease: float = 30, client: SeppClient | None = None) -> Any:
    await bench.put("t")
    [job] = await (client or bench.client).reserve(ReserveOptions(["emails"], lease))
    return job


@dataclass
class Odd:
    """A job of the user's own."""

    id: str
    attempt: int
    lease_deadline: Any = None
    lease_duration: Any = None
    worker_id: Any = None


async def test_the_loss_cancels_every_task_that_holds_the_job(bench: Bench) -> None:
    job = await reserve_one(bench)
    await bench.lose_lease(job)
    ended = []

    async def work() -> None:
        with pytest.raises(LeaseLostError, match="job not found"):
            async with bench.client.hold(job):
                await trio.sleep_forever()
        ended.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(work)
    assert ended == [pytest.approx(10, abs=0.1)] * 3


async def test_the_end_of_the_lease_cancels_every_task_that_holds_the_job(bench: Bench) -> None:
    job = await reserve_one(bench, 3)

    async def work() -> None:
        with pytest.raises(LeaseLostError, match="its time is up"):  # noqa: PT012
            async with bench.client.hold(job, auto_extend=False) as lease:
                if trio.current_time() < 1:
                    await lease.extend(6)
                await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        nursery.start_soon(work)
    assert 5.5 < trio.current_time() < 6


async def test_who_lets_go_of_an_unsettled_job_cancels_the_others(bench: Bench) -> None:
    job = await reserve_one(bench)

    async def work() -> None:
        with pytest.raises(LeaseLostError, match="let go"):
            async with bench.client.hold(job):
                await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        async with bench.client.hold(job):
            nursery.start_soon(work)
            await trio.sleep(5)
        await trio.sleep(1)
        assert not nursery.child_tasks


async def test_an_ack_by_one_leaves_the_others_alone(bench: Bench) -> None:
    job = await reserve_one(bench)
    done = []

    async def work() -> None:
        async with bench.client.hold(job) as lease:
            await trio.sleep(100)
            with pytest.raises(JobNotFoundError):
                await lease.ack()
            done.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        async with bench.client.hold(job) as lease:
            nursery.start_soon(work)
            await trio.sleep(1)
            await lease.ack()
        await trio.sleep(1)
        assert not done
    assert len(done) == 1


async def test_an_ack_fails_when_its_client_ends_before_the_repeat(bench: Bench) -> None:
    async def work(client: SeppClient, job: Any) -> None:
        bench.inject(Fail("Ack", times=None))
        with pytest.raises(ClientClosedError):
            async with client.hold(job) as lease:
                await lease.ack()

    async with trio.open_nursery() as nursery:
        async with open_client(bench.proxy.connect) as client:
            job = await reserve_one(bench, client=client)
            nursery.start_soon(work, client, job)
            await trio.sleep(5)
        await trio.sleep(0.1)
        assert not nursery.child_tasks


@pytest.mark.parametrize("way", ["ack", "nack", "extend"])
async def test_a_lease_outlives_its_client_without_use(bench: Bench, way: str) -> None:
    async def work(client: SeppClient, job: Any) -> None:
        async with client.hold(job) as lease:
            calls: dict[str, Any] = {"nack": lease.nack, "extend": lambda: lease.extend(3)}
            await trio.sleep(5)
            with pytest.raises(ClientClosedError):
                await calls.get(way, lease.ack)()

    async with trio.open_nursery() as nursery:
        async with open_client(bench.proxy.connect) as client:
            nursery.start_soon(work, client, await reserve_one(bench, client=client))
            await trio.sleep(1)
        assert nursery.child_tasks


@pytest.mark.parametrize(
    ("members", "error"),
    [
        ({"lease_deadline": float("nan")}, ValueError),
        ({"lease_deadline": float("inf")}, ValueError),
        ({"lease_deadline": "soon"}, TypeError),
        ({"lease_duration": float("nan")}, ValueError),
        ({"lease_duration": 0}, ValueError),
        ({"lease_duration": "long"}, TypeError),
        ({"worker_id": 5}, TypeError),
        ({"worker_id": ""}, ValueError),
    ],
)
async def test_a_job_that_says_nonsense_is_refused_and_not_kept(
    bench: Bench, members: dict[str, Any], error: type[Exception]
) -> None:
    job = await reserve_one(bench)
    [field] = members
    with pytest.raises(error, match=f"job.{field} must"):
        async with bench.client.hold(Odd(job.id, 1, **members)):
            raise AssertionError("entered")
    async with bench.client.hold(job) as lease:
        await lease.ack()
    assert bench.jobs().acked


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"auto_extend": "no"}, TypeError, "auto_extend must be a bool"),
        ({"auto_extend": False, "interval": 3}, ValueError, "interval has no use"),
    ],
)
async def test_options_that_make_no_sense_are_refused(
    bench: Bench, options: Any, error: type[Exception], text: str
) -> None:
    job = await reserve_one(bench)
    with pytest.raises(error, match=text):
        async with bench.client.hold(job, **options):
            raise AssertionError("entered")


async def test_a_nack_takes_directives_only(bench: Bench) -> None:
    job = await reserve_one(bench)
    wrong: Any = "after"
    async with bench.client.hold(job) as lease:
        for nack in (lease.nack(wrong), bench.client.nack(job, wrong)):
            with pytest.raises(TypeError, match="directive must be a RetryDirective, not str"):
                await nack
        await lease.ack()
    assert bench.calls.of("Nack") == ()
