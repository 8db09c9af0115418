"""Nurseries for the command line: plain errors out, and signals in."""

from __future__ import annotations

import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


@asynccontextmanager
async def plain_nursery() -> AsyncIterator[trio.Nursery]:
    """A nursery out of which a single failure comes as itself, not in a group."""
    try:
        async with trio.open_nursery() as nursery:
            yield nursery
    except BaseExceptionGroup as group:
        failure: BaseException = group
        while isinstance(failure, BaseExceptionGroup) and len(failure.exceptions) == 1:
            failure = failure.exceptions[0]
        if failure is group:
            raise
        raise failure from failure.__cause__


async def on_signals(
    act: Callable[[signal.Signals], None],
    *numbers: signal.Signals,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Call `act` with each of the signals, until cancelled; from `started` on none is missed."""
    with trio.open_signal_receiver(*numbers) as signals:
        task_status.started()
        async for number in signals:
            act(signal.Signals(number))
