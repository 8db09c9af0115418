"""Peers that are gone, or only look as if they were there (spec 14.6)."""

from __future__ import annotations

import logging
from contextlib import suppress

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from sepp_trio.transport.server import ServerConfig
from tests.transport.hostile import BIG_WINDOW, PREFACE, RawClient, ping, settings, window_update
from tests.transport.server_tools import ECHO, PARK, WATCH, Gate, open_harness

PING = bytes.fromhex("3b7cdb7a0b8716b4")


async def test_a_silent_peer_is_asked_after_thirty_seconds_and_again(
    autojump_clock: MockClock,
) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        await client.send(client.call(1, PARK, b"me"))
        start = trio.current_time()
        for asked in (1, 2, 3):
            while len(client.pings) < asked:
                await client.pump()
            assert trio.current_time() - start == pytest.approx(30 * asked)
        assert set(client.pings) == {PING}
        harness.service.release.set()
        assert (await client.answer(1)).messages == [b"me"]


async def test_a_peer_that_speaks_is_not_asked(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        for _ in range(20):
            await trio.sleep(25)
            await client.request(ECHO)
        assert client.pings == []


@pytest.mark.parametrize("handlers", [0, 1])
async def test_a_half_open_connection_ends_after_forty_seconds(
    autojump_clock: MockClock, handlers: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="sepp_trio")
    async with open_harness() as harness:
        client = await harness.client(polite=False)
        if handlers:
            await client.send(client.call(1, PARK, b"me"))
        start = trio.current_time()
        await client.drained()
        assert trio.current_time() - start == pytest.approx(40)
        assert client.goaways == [(handlers, 0, b"no sign of life")]
        await wait_all_tasks_blocked()
        assert harness.service.cancelled == [b"me"] * handlers
        assert [record.levelno for record in caplog.records] == [logging.INFO]


@pytest.mark.parametrize("opening", [b"", PREFACE[:-1], PREFACE])
async def test_a_peer_without_a_handshake_is_closed(
    autojump_clock: MockClock, opening: bytes
) -> None:
    async with open_harness(ServerConfig(handshake_timeout=5)) as harness:
        client = RawClient(harness.stream(), polite=False)
        start = trio.current_time()
        for byte in opening:
            await client.send(bytes((byte,)))
            await trio.sleep(0.1)
        await client.drained()
        assert trio.current_time() - start == pytest.approx(5)
        assert client.goaways == [(0, 4, b"no HTTP/2 handshake in time")]


async def test_a_slow_handshake_in_time_is_fine(autojump_clock: MockClock) -> None:
    async with open_harness(ServerConfig(handshake_timeout=5)) as harness:
        client = RawClient(harness.stream())
        for byte in PREFACE + settings({}):
            await client.send(bytes((byte,)))
            await trio.sleep(0.1)
        await trio.sleep(20)
        assert (await client.request(ECHO, b"me")).messages == [b"me"]


async def test_a_full_socket_ends_a_connection_after_a_while(autojump_clock: MockClock) -> None:
    async with open_harness(ServerConfig(stall_timeout=20)) as harness:
        gate = Gate()
        client = await harness.client(gate=gate)
        gate.shut = True
        await client.send(client.call(1, ECHO, b"me"), client.call(3, PARK, b"parked"))
        start = trio.current_time()
        with suppress(trio.BrokenResourceError):
            for _ in range(100):
                # Not silent: it asks and asks.
                await client.send(ping())
                await trio.sleep(1)
        assert harness.service.cancelled == [b"parked"]
        assert 20 <= trio.current_time() - start <= 32


@pytest.mark.parametrize("route", [ECHO, WATCH])
async def test_a_window_that_never_opens_ends_a_connection_after_a_while(
    autojump_clock: MockClock, route: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_harness(ServerConfig(stall_timeout=20)) as harness:
        client = await harness.client({4: 0})
        await client.send(client.call(1, route, b"me"))
        start = trio.current_time()
        await client.drained()
        assert 20 <= trio.current_time() - start <= 32
        assert client.goaways[0][1] == 11
        assert harness.service.undelivered == [b"me"]
        (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert record.levelno == logging.WARNING


async def test_a_window_that_opens_little_by_little_is_fine(autojump_clock: MockClock) -> None:
    async with open_harness(ServerConfig(stall_timeout=20)) as harness:
        client = await harness.client({4: 0}, credit=BIG_WINDOW)
        await client.send(client.call(1, ECHO, b"x" * 20))
        for _ in range(25):
            await trio.sleep(15)
            await client.send(window_update(1, 1))
        assert (await client.answer(1)).messages == [b"x" * 20]


async def test_connections_over_the_limit_are_closed_and_logged_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_harness(ServerConfig(max_connections=2)) as harness:
        first, _ = [await harness.client() for _ in range(2)]
        for _ in range(3):
            refused = RawClient(harness.stream())
            await refused.drained()
            assert refused.settings == []
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert (await first.request(ECHO, b"fine")).messages == [b"fine"]
        await first.stream.aclose()
        await wait_all_tasks_blocked()
        again = await harness.client()
        assert (await again.request(ECHO, b"fine")).messages == [b"fine"]


async def test_idle_connections_are_kept(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        clients = [await harness.client() for _ in range(100)]
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(client.until, lambda client=client: len(client.pings) == 20)
        for client in clients:
            assert (await client.request(ECHO, b"still")).messages == [b"still"]
