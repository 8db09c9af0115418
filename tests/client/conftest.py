"""A scripted server, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing

from sepp_trio.client import SeppClient
from tests.client.fake import FakeServer


@pytest.fixture
def server(autojump_clock: trio.testing.MockClock, nursery: trio.Nursery) -> FakeServer:
    return FakeServer(nursery)


@pytest.fixture
async def client(server: FakeServer) -> AsyncIterator[SeppClient]:
    async with server.client() as client:
        yield client
