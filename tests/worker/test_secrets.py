"""Neither payloads nor keys get into any log, at any level, on either side."""

from __future__ import annotations

import logging

import pytest
import trio

from sepp_trio import (
    ApiKey,
    BrokerConfig,
    EnqueueRequest,
    HandlerError,
    JobCtx,
    Payload,
    UnauthenticatedError,
    Worker,
    open_client,
)
from sepp_trio.testing import open_recording_broker
from tests.worker.helpers import running

KEY = "sEcReT-key"
PAYLOAD = b"sEcReT-payload"


def test_no_log_has_payloads_or_keys(caplog: pytest.LogCaptureFixture) -> None:
    """On real time and sockets: keys travel there only."""
    caplog.set_level(logging.DEBUG)

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        if ctx.attempt == 1:
            raise HandlerError.retry("later")
        if ctx.attempt == 2:
            raise ValueError("no")

    async def main() -> None:
        config = BrokerConfig(api_keys=(ApiKey("workers", KEY),))
        async with open_recording_broker(config=config) as broker, trio.open_nursery() as nursery:
            address = await nursery.start(broker.serve, "127.0.0.1:0")
            with pytest.raises(UnauthenticatedError):
                async with open_client(address, api_key=KEY + "x") as client:
                    await client.get_server_info()
            async with open_client(address, api_key=KEY) as client:
                worker = Worker(client, ["q"], 30, wait_timeout=0.1)
                worker.handle("t", handler)
                async with running(worker):
                    request = EnqueueRequest(
                        "q", "t", Payload(PAYLOAD, "raw"), custom={"a": "sEcReT"}
                    )
                    await client.enqueue(request)
                    with trio.fail_after(10):
                        await broker.settled()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert caplog.records
    assert "sEcReT" not in caplog.text
