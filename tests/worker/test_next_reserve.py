"""When the next reserve is sent: not before the jobs of the last have begun, and with an ack."""

from __future__ import annotations

import pytest
import trio
from grpclib.const import Status

from sepp_trio import JobCtx, Payload, Worker, open_client
from sepp_trio.testing import Answer, Fail
from tests.worker.bench import Bench
from tests.worker.helpers import at_once, running, sleeper, worker_on


class Noted(trio.abc.Stream):
    """A stream that notes which calls begin in each write."""

    def __init__(self, stream: trio.abc.Stream, writes: list[list[str]]) -> None:
        self._stream, self._writes = stream, writes

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        calls = [name for name in ("Ack", "Reserve") if b"/" + name.encode() in bytes(data)]
        if calls:
            self._writes.append(calls)
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._stream.aclose()


@pytest.mark.parametrize("auto_extend", [False, True])
@pytest.mark.parametrize("slots", [1, 8])
async def test_the_ack_of_a_job_and_the_reserve_for_its_slot_are_one_write(
    bench: Bench, slots: int, auto_extend: bool
) -> None:
    writes: list[list[str]] = []

    async def connect() -> trio.abc.Stream:
        return Noted(await bench.proxy.connect(), writes)

    await bench.put(*["t"] * slots)
    async with open_client(connect) as client:
        worker = worker_on(client, max_in_flight=slots, max_jobs=slots, auto_extend=auto_extend)
        worker.handle("t", at_once)
        async with running(worker):
            await bench.settled()
    # Later ones depend on how many acks are answered by then.
    assert writes[:2] == [["Reserve"], ["Ack", "Reserve"]]


async def test_a_job_begins_before_the_next_reserve_is_made(bench: Bench) -> None:
    reserves = []

    async def handle(payload: Payload | None, ctx: JobCtx) -> None:
        reserves.append(worker.statistics().reserves)

    worker = bench.worker(max_in_flight=16)
    worker.handle("t", handle)
    async with running(worker):
        for _ in range(20):  # in which order Trio runs the tasks of a turn is chance
            await bench.put("t")
            await bench.settled()
    assert reserves == [*range(1, 21)]


async def test_jobs_that_take_long_do_not_hold_up_the_next_reserve(bench: Bench) -> None:
    async with bench.running(sleeper(10), max_in_flight=4):
        for number in range(1, 5):
            await bench.put("t")
            await trio.sleep(0.01)
            assert len(bench.asked("Reserve")) == min(number + 1, 4)
    assert [request.max_jobs for request in bench.asked("Reserve")][:4] == [4, 3, 2, 1]


@pytest.mark.parametrize("long", [0, 1])
async def test_jobs_that_end_together_are_reserved_for_together(bench: Bench, long: int) -> None:
    worker = bench.worker(200, max_in_flight=4 + long)
    worker.handle("t", sleeper(1))
    worker.handle("long", sleeper(100))
    await bench.put(*["long"] * long, *["t"] * 4)
    async with running(worker):
        await trio.sleep(2)
        assert [request.max_jobs for request in bench.asked("Reserve")] == [4 + long, 4]


async def while_one_runs(bench: Bench, worker: Worker) -> list[float]:
    """When the worker reserves while a job of 0.1 s runs that the first reserve brought."""
    worker.handle("t", sleeper(0.1))
    await bench.put("t")
    async with running(worker):
        await trio.sleep(20)
        return bench.calls.times("Reserve")


async def test_a_job_that_ends_does_not_cut_the_pause_after_a_failed_reserve(bench: Bench) -> None:
    bench.inject(Fail("Reserve", 2, Status.INTERNAL))
    worker = bench.worker(max_in_flight=2, reserve_error_backoff=8.0)
    _, failed, again, *_ = await while_one_runs(bench, worker)
    assert failed < 0.1
    assert 4 <= again - failed <= 8.1


async def test_nor_the_pause_after_an_answer_that_was_empty_too_early(bench: Bench) -> None:
    bench.inject(Answer("Reserve", 2, b""))
    _, empty, again, *_ = await while_one_runs(bench, bench.worker(max_in_flight=2))
    assert empty < 0.02
    assert 0.125 <= again - empty <= 0.26
