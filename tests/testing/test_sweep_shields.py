"""Whose shield it is, and whether it has a deadline: own sections without one are found."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import tricycle
import trio

from sepp_trio import JobCtx, Payload
from sepp_trio.testing import SweepFailure, cancellation_sweep
from tests.testing.sweeping import Handler, failure_of, line_of

PROBLEM = "a shielded section without a deadline keeps the handler from its cancel"


async def soon() -> None:
    """A wait that somebody else ends soon."""
    event = trio.Event()
    trio.lowlevel.current_trio_token().run_sync_soon(event.set)
    await event.wait()


# ---- to be found ----


async def a_wait_that_is_a_sleep_only_here() -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep(0.1)  # here


async def a_scope() -> None:
    with trio.CancelScope(shield=True):
        await soon()  # here


async def a_scope_that_hides_a_deadline() -> None:
    with trio.move_on_after(5, shield=True), trio.CancelScope(shield=True):
        await soon()  # here


async def a_nursery() -> None:
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.shield = True
        await soon()  # here


async def a_stack() -> None:
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(trio.CancelScope(shield=True))
        await soon()  # here


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    with trio.CancelScope(shield=True):
        yield


async def a_context_manager_of_its_own() -> None:
    with shielded():
        await soon()  # here


@contextlib.asynccontextmanager
async def cleaning() -> AsyncIterator[None]:
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            await soon()  # here


async def an_async_context_manager_of_its_own() -> None:
    async with cleaning():
        pass


async def the_shield_of_the_task_above() -> None:
    with trio.CancelScope(shield=True):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(soon)


@pytest.mark.parametrize(
    ("section", "at"),
    [
        (a_wait_that_is_a_sleep_only_here, a_wait_that_is_a_sleep_only_here),
        (a_scope, a_scope),
        (a_scope_that_hides_a_deadline, a_scope_that_hides_a_deadline),
        (a_nursery, a_nursery),
        (a_stack, a_stack),
        (a_context_manager_of_its_own, a_context_manager_of_its_own),
        (an_async_context_manager_of_its_own, cleaning.__wrapped__),  # type: ignore[attr-defined]
    ],
)
@pytest.mark.parametrize("by", ["lease lost", "shutdown", "timeout"])
async def test_a_shield_of_its_own_needs_a_deadline(section: Handler, at: Handler, by: Any) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await section()

    failure = await failure_of(handler, by=by)
    assert failure.problem == PROBLEM
    # The line that waits: the marked one, or one in what that has called.
    assert failure.line is not None
    if failure.line.function != "soon":
        assert failure.line.number == line_of(at)


async def test_a_shield_above_a_task_needs_a_deadline() -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await the_shield_of_the_task_above()

    failure = await failure_of(handler)
    assert failure.problem == PROBLEM


# ---- not to be found ----


async def a_deadline() -> None:
    with trio.move_on_after(5, shield=True):
        await soon()


async def a_deadline_that_is_set_later() -> None:
    with trio.CancelScope(shield=True) as scope:
        scope.deadline = trio.current_time() + 5
        await soon()


async def a_deadline_around_a_sleep() -> None:
    with trio.CancelScope(shield=True), trio.move_on_after(5):
        await trio.sleep(0.1)


async def a_deadline_inside() -> None:
    with trio.CancelScope(shield=True), trio.fail_after(5):
        await soon()


async def nothing_that_waits() -> None:
    send, receive = trio.open_memory_channel[int](1)
    with trio.CancelScope(shield=True):
        await send.send(1)
        await receive.receive()
        await send.aclose()


async def a_thread() -> None:
    with trio.CancelScope(shield=True):
        await trio.to_thread.run_sync(time.sleep, 0.001)


async def a_shield_of_trio() -> None:
    condition = trio.Condition()

    async def notify() -> None:
        await trio.sleep(1)
        async with condition:
            condition.notify_all()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(notify)
        async with condition:
            await condition.wait()


async def a_shield_of_a_library() -> None:
    async def service(*, task_status: trio.TaskStatus[None]) -> None:
        task_status.started()
        await trio.sleep_forever()

    async with tricycle.open_service_nursery() as nursery:
        await nursery.start(service)
        await trio.sleep(1)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "section",
    [
        a_deadline,
        a_deadline_that_is_set_later,
        a_deadline_around_a_sleep,
        a_deadline_inside,
        nothing_that_waits,
        a_thread,
        a_shield_of_trio,
        a_shield_of_a_library,
    ],
)
@pytest.mark.parametrize("by", ["lease lost", "shutdown", "timeout"])
async def test_other_shields_are_left_alone(section: Handler, by: Any) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        try:
            await trio.sleep(1)
        finally:
            await section()

    await cancellation_sweep(handler, by=by)


async def test_what_anyio_shields_is_seen_as_well() -> None:
    anyio = pytest.importorskip("anyio")

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        with anyio.CancelScope(shield=True):
            await soon()

    with pytest.raises(SweepFailure, match=PROBLEM):
        await cancellation_sweep(handler)
