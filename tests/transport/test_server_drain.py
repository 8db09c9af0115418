"""The graceful stop, and the goodbyes of peers (spec 8.5, 14.6)."""

from __future__ import annotations

import logging

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from sepp_trio.transport.server import ServerConfig
from tests.transport.hostile import RawClient, data, goaway, ping, prefixed
from tests.transport.server_tools import ECHO, PARK, STUBBORN, WATCH, Harness, open_harness

FIRST = (2**31 - 1, 0, b"")


async def test_a_drain_says_goodbye_in_two_steps_and_finishes_open_calls(
    autojump_clock: MockClock,
) -> None:
    async with open_harness() as harness:
        client = await harness.client(polite=False)
        await client.send(client.call(1, PARK, b"open"))
        await trio.testing.wait_all_tasks_blocked()
        harness.server.start_drain()
        harness.server.start_drain()
        await client.until(lambda: bool(client.pings))
        assert client.goaways == [FIRST]
        # Until the peer says that it has heard, new calls are served.
        await client.send(client.call(3, ECHO, b"crossing"))
        assert (await client.answer(3)).messages == [b"crossing"]
        await client.send(ping(client.pings[0], ack=True))
        await client.until(lambda: len(client.goaways) == 2)
        assert client.goaways[1] == (3, 0, b"")
        # What comes after that is ignored in silence.
        await client.send(client.call(5, ECHO, b"late"))
        await trio.testing.wait_all_tasks_blocked()
        harness.service.release.set()
        await client.drained()
        assert client.answers[1].messages == [b"open"]
        assert 5 not in client.answers
        assert harness.service.started == [b"open", b"crossing"]


async def test_a_request_still_on_its_way_is_finished(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        await client.send(client.head(1, ECHO), data(1, prefixed(b"slow")[:3], end=False))
        await trio.testing.wait_all_tasks_blocked()
        harness.server.start_drain()
        await client.until(lambda: len(client.goaways) == 2)
        await client.send(data(1, prefixed(b"slow")[3:]))
        await client.drained()
        assert client.answers[1].messages == [b"slow"]


async def test_idle_peers_are_gone_at_once(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        clients = [await harness.client() for _ in range(3)]
        start = trio.current_time()
        harness.server.start_drain()
        for client in clients:
            await client.drained()
            await client.stream.aclose()
        await _only_the_harness(harness)
        assert trio.current_time() - start < 0.1


async def test_handlers_may_wait_for_the_drain(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        assert not harness.server.draining.is_set()
        harness.server.start_drain()
        await harness.server.draining.wait()


@pytest.mark.parametrize("route", [PARK, WATCH])
async def test_a_drain_has_an_end(
    autojump_clock: MockClock, route: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_harness(ServerConfig(drain_timeout=7)) as harness:
        client = await harness.client()
        await client.send(client.call(1, route, b"w"))
        await trio.testing.wait_all_tasks_blocked()
        start = trio.current_time()
        harness.server.start_drain()
        await client.drained()
        assert trio.current_time() - start == pytest.approx(7)
        await _only_the_harness(harness)
        assert harness.service.undelivered == [b"w"]
        assert "still busy at the end of the drain" in caplog.text


async def test_a_peer_that_never_heard_the_goodbye_is_cut_off(autojump_clock: MockClock) -> None:
    async with open_harness(ServerConfig(drain_timeout=7)) as harness:
        client = await harness.client(polite=False)
        start = trio.current_time()
        harness.server.start_drain()
        await client.drained()
        assert client.goaways == [FIRST]
        assert trio.current_time() - start == pytest.approx(7)


async def test_a_peer_without_a_handshake_is_closed_at_once(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = RawClient(harness.stream())
        await client.until(lambda: bool(client.settings))
        harness.server.start_drain()
        await client.drained()
        assert client.goaways == []


async def test_a_draining_server_takes_no_connections(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        harness.server.start_drain()
        client = RawClient(harness.stream())
        await client.drained()
        assert client.settings == []


async def test_serve_returns_after_the_drain_and_closes_its_listeners_first() -> None:
    async with open_harness() as harness:
        real = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with trio.open_nursery() as nursery:
            assert await nursery.start(harness.server.serve, real) == real
            stream = await trio.testing.open_stream_to_socket_listener(real[0])
            client = RawClient(stream)
            await client.start()
            await client.send(client.call(1, PARK, b"open"))
            await client.until(lambda: client.settings_acks == 1)
            while harness.service.alive == 0:
                await trio.lowlevel.checkpoint()
            harness.server.start_drain()
            await client.until(lambda: len(client.goaways) == 2)
            with pytest.raises(OSError, match=r"[Cc]onnect|closed|Bad file"):
                await trio.testing.open_stream_to_socket_listener(real[0])
            harness.service.release.set()
            assert (await client.answer(1)).messages == [b"open"]
            await client.drained()
            await stream.aclose()


async def test_a_peer_s_goaway_is_answered_when_its_calls_are(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        await client.send(client.call(1, PARK, b"open"), goaway())
        await trio.testing.wait_all_tasks_blocked()
        assert client.goaways == []
        harness.service.release.set()
        await client.drained()
        assert client.answers[1].messages == [b"open"]
        assert client.goaways == [(1, 0, b"")]


async def test_a_peer_that_stops_writing_loses_its_calls(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        await client.send(client.call(1, PARK, b"open"))
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(client.stream, trio.StapledStream)
        await client.stream.send_eof()
        await client.drained()
        await trio.testing.wait_all_tasks_blocked()
        assert harness.service.cancelled == [b"open"]


async def test_a_connection_waits_for_handlers_that_shield_themselves(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with open_harness() as harness:
        client = await harness.client()
        await client.send(client.call(1, STUBBORN, b"me"))
        await trio.testing.wait_all_tasks_blocked()
        await client.stream.aclose()
        await trio.sleep(100)
        assert harness.service.alive == 1
        harness.service.release.set()
        await _only_the_harness(harness)
        assert caplog.records == []


async def _only_the_harness(harness: Harness) -> None:
    await trio.testing.wait_all_tasks_blocked()
    assert not harness.nursery.child_tasks
