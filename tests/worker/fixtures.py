"""The scripted server and a client of it, as fixtures for the rooms that work against it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from sepp_trio import SeppClient
from tests.worker.helpers import Sepp


@pytest.fixture
async def sepp(nursery: trio.Nursery) -> Sepp:
    """A scripted server."""
    return Sepp(nursery)


@pytest.fixture
async def client(sepp: Sepp) -> AsyncIterator[SeppClient]:
    """A client of it."""
    async with sepp.client() as client:
        yield client
