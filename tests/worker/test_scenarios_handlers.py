"""Faults of the official workers (spec/official-clients.md 6.2): handlers."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from typing import Any

import pytest
import trio

from sepp_trio import DuplicateHandlerError, EnqueueRequest, HandlerError, JobCtx, Payload
from sepp_trio.testing import Acked, Retried, open_recording_broker, run_handler
from tests.worker.bench import Bench
from tests.worker.helpers import at_once, given_back, ids, running, sleeper, until, worker_on


async def test_09_an_unknown_type_is_left_to_others_for_a_while(bench: Bench) -> None:
    async with bench.running(at_once) as worker:
        await bench.put("new", max_attempts=10)
        await bench.settled()
    [job] = bench.jobs().dead_letters
    delays = [event.seconds for event in job.events if event.kind == "nacked"]
    assert delays == [2, 4, 8, 16, 32, 60, 60, 60, 60, None]
    assert set(job.nack_reasons) == {"no handler for job type 'new' on this worker"}
    assert worker.statistics().unhandled == 10


async def test_14_a_handler_that_raises_a_foreign_cancel_is_retried_later() -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        raise asyncio.CancelledError

    assert await run_handler(handler) == Retried(2, "handler raised CancelledError")


async def test_14_a_cancelled_that_is_kept_and_raised_again_is_no_cancel() -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        kept: list[trio.Cancelled] = []
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.lowlevel.checkpoint()
            except trio.Cancelled as cancelled:
                kept.append(cancelled)
                raise
        raise kept[0]

    outcome = await run_handler(handler)
    assert isinstance(outcome, Retried)
    assert (outcome.reason or "").startswith("handler raised Cancelled")


async def test_16_a_handler_that_fails_before_its_first_await_is_nacked() -> None:
    class Handler:
        def __call__(self, payload: Payload | None, ctx: JobCtx) -> Any:
            raise RuntimeError("no coroutine yet")

    assert await run_handler(Handler()) == Retried(
        0, "handler raised RuntimeError: no coroutine yet"
    )


async def two(payload: Payload | None, ctx: JobCtx) -> None: ...
async def one(payload: Payload | None) -> None: ...
async def three(payload: Payload | None, ctx: JobCtx, more: int) -> None: ...
async def agen(payload: Payload | None, ctx: JobCtx) -> Any:
    yield


def gen(payload: Payload | None, ctx: JobCtx) -> Any:
    yield


class Callable2:
    async def __call__(self, payload: Payload | None, ctx: JobCtx) -> None: ...

    async def method(self, payload: Payload | None, ctx: JobCtx) -> None: ...


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (one, r"handler one must take two arguments, payload and ctx, but its signature is \("),
        (three, "handler three must take two arguments"),
        (agen, "handler agen is a generator function: it must not yield"),
        (gen, "handler gen is a generator function"),
        (Callable2, "not the class Callable2"),
        (17, "handler must be a function, not int"),
        (None, "handler must be a function, not NoneType"),
        (functools.partial(agen), "generator function"),
    ],
)
async def test_15_what_cannot_be_a_handler_is_refused_at_registration(
    bench: Bench, handler: Any, message: str
) -> None:
    worker = bench.worker()
    for register in (
        lambda: worker.handle("t", handler),
        lambda: worker.replace_handler("t", handler),
        lambda: worker.catch_all(handler),
        lambda: worker.handler("t")(handler),
    ):
        with pytest.raises(TypeError, match=message):
            register()


async def test_15_a_coroutine_object_is_refused(bench: Bench) -> None:
    with pytest.raises(TypeError, match=r"pass two, not two\(...\)"):
        bench.worker().handle("t", two(None, None))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "handler",
    [
        two,
        Callable2(),
        Callable2().method,
        functools.partial(three, more=3),
        lambda payload, ctx: None,
    ],
)
async def test_15_functions_methods_partials_and_callables_are_handlers(handler: Any) -> None:
    assert await run_handler(handler) == Acked()


async def test_15_a_plain_function_runs_in_a_thread_under_heartbeat() -> None:
    threads = []

    def handler(payload: Payload | None, ctx: JobCtx) -> None:
        threads.append(threading.current_thread())
        assert ctx.remaining() > 0
        assert not ctx.stopping
        assert ctx.cancel_reason is None
        trio.from_thread.run(trio.sleep, 10)
        assert ctx.extend_from_thread(50) == ctx.lease_expires_at
        trio.from_thread.run(trio.sleep, 20)

    outcome = await run_handler(handler, lease_duration=3, auto_extend=True)
    assert outcome == Acked()
    assert threads[0] is not threading.main_thread()
    asked = [extend.asked for extend in outcome.extends]
    assert len(asked) >= 10
    assert asked[-1] == 50  # and no beat shortens it


def test_15_a_thread_learns_of_its_cancel() -> None:
    """On real time, which is what a thread sees."""
    began = threading.Event()
    reasons: list[str | None] = []

    def handler(payload: Payload | None, ctx: JobCtx) -> None:
        began.set()
        try:
            while True:
                trio.from_thread.check_cancelled()
                time.sleep(0.001)
        finally:
            reasons.append(ctx.cancel_reason)

    async def main() -> None:
        async with open_recording_broker() as broker, broker.open_client() as client:
            await client.enqueue(EnqueueRequest("emails", "t"))
            worker = worker_on(client, wait_timeout=0.1)
            worker.handle("t", handler)
            async with running(worker):
                await until(began.is_set, 20)
                worker.shutdown(0)
            assert given_back(broker.jobs()[0], "shutdown grace over")

    trio.run(main)
    assert reasons == ["shutdown grace over"]


async def test_15_a_plain_function_that_returns_a_coroutine_is_told_so() -> None:
    outcome = await run_handler(lambda payload, ctx: two(payload, ctx))
    assert isinstance(outcome, Retried)
    assert "appears to be asynchronous" in (outcome.reason or "")


async def test_a_type_has_one_handler_unless_it_is_replaced(bench: Bench) -> None:
    worker = bench.worker()

    @worker.handler("t")
    async def first(payload: Payload | None, ctx: JobCtx) -> None:
        raise HandlerError.permanent("the first")

    with pytest.raises(DuplicateHandlerError, match="'t'"):
        worker.handle("t", at_once)
    worker.replace_handler("t", at_once)
    assert worker.remove_handler("t")
    assert not worker.remove_handler("t")
    worker.handle("t", at_once)

    @worker.catch_all
    async def anything(payload: Payload | None, ctx: JobCtx) -> None:
        seen.append(ctx.job_type)

    seen: list[str] = []
    async with running(worker):
        await bench.put("t", "other")
        await bench.settled()
    assert len(bench.jobs().acked) == 2
    assert seen == ["other"]


async def test_a_types_own_timeout_counts(bench: Bench) -> None:
    worker = bench.worker(300, handler_timeout=100)
    worker.handle("quick", sleeper(1000), timeout=5)
    worker.handle("slow", sleeper(1000))
    async with running(worker):
        await bench.put("quick", "slow", max_attempts=1)
        await bench.settled()
    [quick, slow] = bench.jobs().dead_letters
    assert quick.done_at == pytest.approx(5, abs=0.2)
    assert slow.done_at == pytest.approx(100, abs=0.2)


async def test_jobs_wait_for_the_limit_of_their_type_under_heartbeat(bench: Bench) -> None:
    running_now = most = 0

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        nonlocal running_now, most
        running_now += 1
        most = max(most, running_now)
        await trio.sleep(5)
        running_now -= 1

    worker = bench.worker(3, max_in_flight=8, auto_extend=True)
    worker.handle("narrow", handler, max_in_flight=2)
    worker.handle("wide", at_once)
    async with running(worker):
        await bench.put(*["narrow"] * 7)
        await trio.sleep(1)
        wide = await bench.put("wide", "wide")
        await bench.until(lambda jobs: ids(jobs.acked) == set(wide))
        await bench.settled()
    assert most == 2
    assert len(bench.jobs().acked) == 9
    assert worker.statistics().lost == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": 0}, "timeout must be more than 0 s"),
        ({"max_in_flight": 0}, "max_in_flight must be between 1"),
    ],
)
async def test_a_types_limits_are_checked(
    bench: Bench, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        bench.worker().handle("t", at_once, **options)
    with pytest.raises(ValueError, match="job_type must not be empty"):
        bench.worker().handle("", at_once)
