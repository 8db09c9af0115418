"""A server that answers what no good server would: too much, too soon, or nonsense.

The answers are put in the place of the real server's; the leases in them are real ones.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from sepp_trio import JobCtx, Payload, SeppClient, wire
from sepp_trio.testing import Answer
from sepp_trio.wire import decoder_of, records
from tests.worker.bench import Bench
from tests.worker.helpers import Watched, at_once, ids, running, until


async def take(client: SeppClient, count: int, lease: int = 30) -> list[records.Job]:
    """Reserve jobs for the worker that is to be lied to."""
    response = await client._channel.unary(
        client._methods.reserve,
        records.ReserveRequest(["emails"], (0, 0), (lease, 0), "w", count),
        timeout=5,
    )
    assert isinstance(response, records.ReserveResponse)
    decode = decoder_of(records.Job)
    return [decode(raw) for raw in response.jobs]


def answer(*jobs: records.Job | bytes, times: int | None = 1) -> Answer:
    """The next reserve gets these."""
    raw = [job if isinstance(job, bytes) else wire.encode(job) for job in jobs]
    return Answer("Reserve", message=wire.encode(records.ReserveResponse(raw)), times=times)


def with_priority_12(job: records.Job) -> None:
    job.priority = 12


def without_type(job: records.Job) -> None:
    job.job_type = ""


def without_time(job: records.Job) -> None:
    job.enqueued_at = None


def with_empty_value(job: records.Job) -> None:
    job.custom = wire.encode_custom({"k": records.PrimitiveValue()})


def with_empty_payload(job: records.Job) -> None:
    job.payload = records.Payload(b"", "raw")


SPOILT = [with_priority_12, without_type, without_time, with_empty_value, with_empty_payload]


async def test_23_a_bad_job_is_dead_lettered_and_does_not_take_the_others_along(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.put(*["t"] * 8)
    first, *bad, nameless, last = await take(bench.client, 8)
    spoilt: list[Callable[[records.Job], None]] = SPOILT
    for job, spoil in zip(bad, spoilt, strict=True):
        spoil(job)
    dead = {job.id for job in bad}
    lost, nameless.id = nameless.id, ""
    bench.inject(answer(first, *bad, nameless, b"\xff\xff\xff", last))
    async with bench.running(at_once) as worker:
        await bench.until(lambda jobs: ids(jobs.leased) == {lost})
    assert ids(bench.jobs().acked) == {first.id, last.id}
    letters = bench.jobs().dead_letters
    assert ids(letters) == dead
    assert all("cannot read the job" in reason for job in letters for reason in job.nack_reasons)
    assert worker.statistics().malformed == 7
    await bench.until(lambda jobs: ids(jobs.expired) == {lost})
    assert f"job {bad[0].id} attempt 1: cannot be read, dead-lettered: priority" in caplog.text


async def test_23_only_bad_jobs_are_no_hot_loop(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.inject(answer(b"\xff\xff\xff", times=None))
    async with bench.running(at_once):
        await trio.sleep(10)
    assert 30 < len(bench.calls.of("Reserve")) < 90
    assert len(caplog.records) < 90


async def test_22_jobs_beyond_the_free_slots_are_kept_under_heartbeat(bench: Bench) -> None:
    worker = bench.worker(3, auto_extend=True, max_in_flight=2)
    handler = Watched(4)
    worker.handle("t", handler)
    await bench.put(*["t"] * 8)
    bench.inject(answer(*await take(bench.client, 8, lease=3)))
    async with running(worker):
        await bench.settled()
    assert len(bench.jobs().acked) == 8
    assert {job.attempt for job in bench.jobs()} == {1}
    assert handler.cancelled == []


async def test_an_empty_answer_that_comes_too_early_is_backed_off(bench: Bench) -> None:
    bench.inject(answer(times=None))
    async with bench.running(at_once):
        await trio.sleep(2)
        assert 8 <= len(bench.calls.of("Reserve")) < 20
        bench.relent()
        await bench.put("t")
        with trio.fail_after(0.3):
            await bench.settled()
        await bench.put("t")
        with trio.fail_after(0.01):
            await bench.settled()


async def test_a_trace_that_cannot_be_read_is_none(bench: Bench) -> None:
    seen: list[object] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        seen.append(ctx.trace_context)

    await bench.put("t")
    [job] = await take(bench.client, 1)
    job.trace_context = b"\xff\xff"
    bench.inject(answer(job))
    async with bench.running(handler):
        await until(lambda: bench.jobs().acked)
    assert seen == [None]
