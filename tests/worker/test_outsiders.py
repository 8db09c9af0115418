"""Threads and signal handlers that shut a worker down or look at it."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest
import trio

from sepp_trio import JobCtx, Payload, SeppClient, WorkerStatistics
from sepp_trio.wire import records
from sepp_trio.worker._reports import Reports
from tests.worker.helpers import Put, at_once, running, until, worker_on


async def test_a_signal_handler_does_not_touch_the_run_that_it_interrupts(
    client: SeppClient,
) -> None:
    worker = worker_on(client)
    worker.handle("t", at_once)
    handle = worker.shutdown_handle()
    before = signal.signal(signal.SIGUSR1, lambda *_: handle.shutdown())
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(worker.run)
            with worker._lock:  # whatever the signal interrupts
                signal.raise_signal(signal.SIGUSR1)
            assert handle.is_shutdown
            assert worker.statistics().state == "running"
            await until(lambda: worker.statistics().state != "running", 1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert worker.statistics().state == "stopped"


async def test_a_thread_may_look_at_a_worker_with_overdue_handlers(
    client: SeppClient, put: Put
) -> None:
    async def stubborn(payload: Payload | None, ctx: JobCtx) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(60)

    worker = worker_on(client)
    worker.handle("t", stubborn)
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        await put("t")
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
    client: SeppClient, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    protected: dict[str, bool] = {}

    def look(where: str) -> None:
        protected[where] = trio.lowlevel.currently_ki_protected()

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        look("handler")

    report = Reports.report

    def spy(*args: Any) -> None:
        look("report")
        report(*args)

    monkeypatch.setattr(Reports, "report", spy)
    worker = worker_on(client)
    worker.handle("t", handler)
    async with running(worker):
        await put("t")
        await until(lambda: worker.statistics().acked)
        client._channel.start_unary(
            client._methods.get_server_info,
            records.GetServerInfoRequest(),
            lambda response, error: look("answer"),
            timeout=1,
        )
        await until(lambda: "answer" in protected)
    assert protected == {"handler": False, "report": True, "answer": True}
