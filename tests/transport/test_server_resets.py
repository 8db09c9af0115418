"""A client's cancel frees its call and nothing else (trial 39)."""

from __future__ import annotations

import logging

import pytest
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.transport.hostile import RawClient, data, prefixed, reset, window_update
from tests.transport.server_tools import PARK, Harness, open_harness


async def _three(harness: Harness) -> RawClient:
    """A client with calls 1, 3 and 5 parked; 3 is not complete."""
    client = await harness.client({4: 8}, polite=False)
    await client.send(client.call(1, PARK, b"1"), client.head(3, PARK), client.call(5, PARK, b"5"))
    await wait_all_tasks_blocked()
    return client


@pytest.mark.parametrize(
    "moment",
    ["before the message", "within the message", "parked", "half answered", "answered", "twice"],
)
async def test_the_others_finish_and_nothing_is_logged(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, moment: str
) -> None:
    caplog.set_level(logging.INFO, logger="sepp_trio")
    async with open_harness() as harness:
        client = await _three(harness)
        message = data(3, prefixed(b"three"))
        if moment == "within the message":
            await client.send(data(3, prefixed(b"three")[:6], end=False))
        elif moment != "before the message":
            await client.send(message)
        await wait_all_tasks_blocked()
        if moment == "half answered":
            harness.service.release.set()
            await client.answer(5)
            assert client.answers[3].data == prefixed(b"three")[:8]
        elif moment == "answered":
            harness.service.release.set()
            await client.send(window_update(3, 10))
            await client.answer(3)
        await client.send(reset(3))
        if moment == "twice":
            await client.send(reset(3))
        await wait_all_tasks_blocked()
        harness.service.release.set()
        assert (await client.answer(1)).messages == [b"1"]
        assert (await client.answer(5)).messages == [b"5"]
        assert client.goaways == []
        started = {b"1", b"5"} if "message" in moment else {b"1", b"5", b"three"}
        assert set(harness.service.started) == started
        gone = [b"three"] if moment in ("parked", "half answered", "twice") else []
        assert harness.service.undelivered == gone
        # Its place is free: the connection has room for another.
        client.next_id = 7
        await client.send(client.call(7, PARK, b"7"))
        assert (await client.answer(7)).messages == [b"7"]
    assert caplog.records == []
