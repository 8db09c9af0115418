"""Every test here runs on a clock that leaps."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from sepp_trio import SeppClient
from tests.virtual_time import mark_room
from tests.worker.helpers import Sepp


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_room(items, __file__)


@pytest.fixture
async def sepp(nursery: trio.Nursery) -> Sepp:
    """A scripted server."""
    return Sepp(nursery)


@pytest.fixture
async def client(sepp: Sepp) -> AsyncIterator[SeppClient]:
    """A client of it."""
    async with sepp.client() as client:
        yield client
