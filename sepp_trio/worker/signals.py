"""Programs that are a worker: the first signal drains, the second forces."""

from __future__ import annotations

import signal
from collections.abc import Iterable

import trio

from .worker import Worker


async def run_until_signal(
    worker: Worker,
    *,
    signals: Iterable[signal.Signals] = (signal.SIGINT, signal.SIGTERM),
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> bool:
    """Run the worker until a signal comes; must be called in the main thread.

    The first signal lets it drain, within its ``shutdown_grace`` if it has one; the second
    cancels the handlers and gives their jobs back.

    Returns:
        Whether every job was finished: false after a second signal, or when the grace was
        over. A program that ends well after a drain does so with exit code 0.

    Raises:
        What ``Worker.run`` raises.
    """
    failure: BaseException | None = None
    with trio.open_signal_receiver(*signals) as received:
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                handle = worker.shutdown_handle()
                async for _ in received:
                    handle.shutdown(0 if handle.is_shutdown else None)

            nursery.start_soon(watch)
            try:
                await worker.run(task_status=task_status)
            except BaseException as error:
                failure = error  # raised below, not in a group
            nursery.cancel_scope.cancel(reason="the worker has ended")
    try:
        if failure is not None:
            raise failure
    finally:
        del failure
    return worker._drained
