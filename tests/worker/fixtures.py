"""A real server in memory, a fault proxy before it, and who uses them, as fixtures."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sepp_trio import SeppClient, open_client
from sepp_trio.testing import (
    CallLog,
    FaultProxy,
    RecordingBroker,
    open_fault_proxy,
    open_recording_broker,
)
from tests.worker.helpers import CONFIG, Put


@pytest.fixture
async def broker() -> AsyncIterator[RecordingBroker]:
    """The server."""
    async with open_recording_broker(config=CONFIG) as broker:
        yield broker


@pytest.fixture
def calls() -> CallLog:
    """What ``client`` has asked the server."""
    return CallLog()


@pytest.fixture
async def proxy(broker: RecordingBroker, calls: CallLog) -> AsyncIterator[FaultProxy]:
    """The way from ``client`` to the server: where tests inject faults."""
    async with open_fault_proxy(broker, observer=calls) as proxy:
        yield proxy


@pytest.fixture
async def client(proxy: FaultProxy) -> AsyncIterator[SeppClient]:
    """The workers' client."""
    async with open_client(proxy.connect) as client:
        yield client


@pytest.fixture
async def put(broker: RecordingBroker) -> AsyncIterator[Put]:
    """Enqueues jobs, past all faults."""
    async with broker.open_client() as producer:
        yield Put(producer)
