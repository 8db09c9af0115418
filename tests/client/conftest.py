"""A scripted server, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from sepp_trio.client import SeppClient
from tests.client.fake import FakeServer


@pytest.fixture
def server(nursery: trio.Nursery) -> FakeServer:
    """Where time matters a test asks for ``autojump_clock`` itself: pytest-trio looks there."""
    return FakeServer(nursery)


@pytest.fixture
async def client(server: FakeServer) -> AsyncIterator[SeppClient]:
    async with server.client() as client:
        yield client
