"""Runs whole test rooms on a clock that leaps, whether or not a test asks for it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing


def run_on_leaping_clock(
    test: Callable[[], Awaitable[Any]],
    *,
    clock: trio.abc.Clock | None = None,
    instruments: Sequence[trio.abc.Instrument] = (),
) -> Any:
    """``trio.run`` with a MockClock that starts at 0 and leaps when all tasks wait."""
    clock = clock or trio.testing.MockClock(autojump_threshold=0)
    return trio.run(test, clock=clock, instruments=instruments)


def mark_room(items: Iterable[pytest.Item], conftest: str) -> None:
    """Let all async tests beside ``conftest`` run so."""
    room = Path(conftest).parent
    for item in items:
        if room in item.path.parents and inspect.iscoroutinefunction(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.trio(run=run_on_leaping_clock))
