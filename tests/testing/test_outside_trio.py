"""What needs Trio says so where it is not there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sepp_trio.testing import (
    assert_no_leaks,
    cancellation_sweep,
    clock_waits_for_threads,
    open_fragile_server,
    open_recording_broker,
    run_handler,
)


async def handler(payload: Any, ctx: Any) -> None:
    pass


async def enters(manager: Any) -> None:
    async with manager:
        pass


async def waits() -> None:
    with clock_waits_for_threads():
        pass


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("run_handler", lambda: run_handler(handler)),
        ("cancellation_sweep", lambda: cancellation_sweep(handler)),
        ("assert_no_leaks", lambda: enters(assert_no_leaks())),
        ("open_recording_broker", lambda: enters(open_recording_broker())),
        ("open_fragile_server", lambda: enters(open_fragile_server())),
        ("clock_waits_for_threads", waits),
    ],
)
def test_asyncio_is_no_trio(name: str, call: Callable[[], Awaitable[object]]) -> None:
    async def main() -> None:
        await call()

    with pytest.raises(RuntimeError, match=rf"^{name} needs Trio: call it within trio\.run, or in"):
        asyncio.run(main())
