"""All async tests here run on a clock that leaps."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sepp_trio.testing import assert_no_leaks
from tests.virtual_time import mark_room
from tests.worker.bench import Bench, open_bench


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_room(items, __file__)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """A server, a fault proxy, and a client that holds jobs. No task outlives them; jobs that
    nobody acks may."""
    async with assert_no_leaks(), open_bench() as bench:
        yield bench
