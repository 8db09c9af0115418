"""Threads and signal handlers that shut a worker down or look at it."""

from __future__ import annotations

import signal
import threading

import trio

from sepp_trio import JobCtx, Payload, SeppClient, WorkerStatistics
from tests.worker.helpers import Sepp, at_once, until, worker_on


async def test_a_signal_handler_does_not_touch_the_run_that_it_interrupts(
    sepp: Sepp, client: SeppClient
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
    sepp: Sepp, client: SeppClient
) -> None:
    async def stubborn(payload: Payload | None, ctx: JobCtx) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(60)

    worker = worker_on(client)
    worker.handle("t", stubborn)
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        sepp.put("t")
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
