"""The bench as a fixture, for the rooms that work on it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.worker.bench import Bench, open_bench


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """A server, a fault proxy, and a client for workers."""
    async with open_bench() as bench:
        yield bench
