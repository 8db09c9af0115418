"""An async context manager that goes on while the block that it serves is being cancelled."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeVar

import trio

T = TypeVar("T")


@asynccontextmanager
async def hosted(manager: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Enter the manager in a task of its own, out of reach of cancels from outside, and leave it
    when the block has ended. So a worker that is cancelled still finds its server.

    Entering and leaving must be bounded by the manager itself. An exception of either side
    comes out as it is.
    """
    entered, ended = trio.Event(), trio.Event()
    values: list[T] = []
    failure: BaseException | None = None

    async def host() -> None:
        nonlocal failure
        try:
            with trio.CancelScope(shield=True):
                async with manager as value:
                    values.append(value)
                    entered.set()
                    await ended.wait()
        except Exception as error:
            failure = failure or error
            nursery.cancel_scope.cancel(reason="what serves the block has failed")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(host)  # not start(): it would wait for a host that waits for us
        try:
            await entered.wait()
            yield values[0]
        except BaseException as error:
            failure = failure or error  # raised below: the nursery would make a group of it
        finally:
            ended.set()
            nursery.cancel_scope.shield = True  # a second Cancelled would hide the failure
    try:
        if failure is not None:
            raise failure
    finally:
        del failure  # it refers to this frame, which refers to it
