"""Threads and signal handlers that shut a worker down or look at it."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest
import trio

from sepp_trio import JobCtx, Payload, WorkerStatistics
from sepp_trio.wire import records
from sepp_trio.worker._reports import Reports
from tests.worker.bench import Bench
from tests.worker.helpers import at_once, running, until


async def test_a_signal_handler_does_not_touch_the_run_that_it_interrupts(bench: Bench) -> None:
    worker = bench.worker()
    worker.handle("t", at_once)
    handle = worker.shutdown_handle()
    before = signal.signal(signal.SIGUSR1, lambda *_: handle.shutdown())
    try:
        async with running(worker):
            with worker._lock:  # whatever the signal interrupts
                signal.raise_signal(signal.SIGUSR1)
            assert handle.is_shutdown
            assert worker.statistics().state == "running"
            await until(lambda: worker.statistics().state != "running", 1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert worker.statistics().state == "stopped"


async def test_a_thread_may_look_at_a_worker_with_overdue_handlers(bench: Bench) -> None:
    async def stubborn(payload: Payload | None, ctx: JobCtx) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(60)

    async with bench.running(stubborn) as worker:
        await bench.put("t")
        await until(lambda: worker.statistics().in_flight)
        worker.shutdown(0)
        await trio.sleep(5)
        seen: list[WorkerStatistics] = []
        thread = threading.Thread(target=lambda: seen.append(worker.statistics()))
        thread.start()
        thread.join()
    [statistics] = seen
    assert statistics.overdue == 1
    assert 4.5 < statistics.oldest_overdue < 5.5


async def test_ctrl_c_interrupts_handlers_and_not_the_books(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    protected: dict[str, bool] = {}

    def look(where: str) -> None:
        protected[where] = trio.lowlevel.currently_ki_protected()

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        look("handler")

    ack = Reports.ack

    def spy(*args: Any) -> None:
        look("report")
        ack(*args)

    monkeypatch.setattr(Reports, "ack", spy)
    async with bench.running(handler) as worker:
        await bench.put("t")
        await until(lambda: worker.statistics().acked)
        bench.client._channel.start_unary(
            bench.client._methods.get_server_info,
            records.GetServerInfoRequest(),
            lambda response, error: look("answer"),
            timeout=1,
        )
        await until(lambda: "answer" in protected)
    assert protected == {"handler": False, "report": True, "answer": True}
