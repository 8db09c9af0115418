"""Peers that mean harm: their own connection suffers, nobody else's (trials 37, 38)."""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import hpack
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import (
    MockClock,
    lockstep_stream_one_way_pair,
    memory_stream_one_way_pair,
    wait_all_tasks_blocked,
)

from sepp_trio.transport.server import ServerConfig
from tests.transport import hostile
from tests.transport.hostile import (
    END_HEADERS,
    RawClient,
    data,
    frame,
    ping,
    prefixed,
    reset,
    settings,
    window_update,
)
from tests.transport.server_tools import ECHO, PARK, STUBBORN, Gate, Harness, open_harness

REFUSED_STREAM, ENHANCE_YOUR_CALM = 7, 11
MIB = 1024 * 1024


@contextmanager
def little_memory(limit: int) -> Iterator[None]:
    """The block allocates at most so many bytes on top of what there was."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < limit, f"{peak} bytes"


async def served(harness: Harness) -> None:
    """Another client is served."""
    client = await harness.client()
    assert (await client.request(ECHO, b"fine")).messages == [b"fine"]
    await client.stream.aclose()


# --- resets ---------------------------------------------------------------------------


async def test_ten_thousand_calls_reset_at_once_start_nothing_and_end_the_connection(
    autojump_clock: MockClock,
) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        calls = (client.call(number, PARK, b"me") + reset(number) for number in range(1, 20_001, 2))
        await client.send(b"".join(calls))
        await client.drained()
        assert client.goaways == [(41, ENHANCE_YOUR_CALM, b"too_many_resets")]
        assert harness.service.most_alive == 0
        await served(harness)


async def test_twenty_early_resets_in_one_read_are_tolerated_again_and_again(
    autojump_clock: MockClock,
) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        for _ in range(50):
            numbers = [client.new_id() for _ in range(20)]
            await client.send(*(client.call(number, PARK) + reset(number) for number in numbers))
            await wait_all_tasks_blocked()
        assert harness.service.started == []
        assert (await client.request(ECHO, b"on")).messages == [b"on"]


async def test_resets_of_calls_that_run_are_harmless(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        numbers = [client.new_id() for _ in range(2000)]
        await client.send(*(client.call(number, PARK) for number in numbers))
        await wait_all_tasks_blocked()
        assert harness.service.alive == 2000
        await client.send(*(reset(number) for number in numbers))
        await wait_all_tasks_blocked()
        assert harness.service.alive == 0
        for _ in range(300):
            number = client.new_id()
            await client.send(client.call(number, PARK))
            await wait_all_tasks_blocked()
            await client.send(reset(number))
            await wait_all_tasks_blocked()
        assert (await client.request(ECHO, b"on")).messages == [b"on"]
        assert client.goaways == []


async def test_handlers_that_outlive_their_reset_calls_count(autojump_clock: MockClock) -> None:
    async with open_harness(ServerConfig(max_calls=5)) as harness:
        client = await harness.client()
        for _ in range(20):
            number = client.new_id()
            await client.send(client.call(number, STUBBORN, b"me"))
            await wait_all_tasks_blocked()
            await client.send(reset(number))
        assert harness.service.most_alive == 5
        assert (await client.request(ECHO)).reset == REFUSED_STREAM
        await served(harness)
        harness.service.release.set()
        await wait_all_tasks_blocked()
        assert (await client.request(ECHO, b"on")).messages == [b"on"]


async def test_calls_over_the_limit_are_refused(autojump_clock: MockClock) -> None:
    async with open_harness(ServerConfig(max_calls=2)) as harness:
        client = await harness.client()
        assert client.settings[0][3] == 2
        await client.send(*(client.call(number, PARK, b"%d" % number) for number in (1, 3, 5)))
        assert (await client.answer(5)).reset == REFUSED_STREAM
        harness.service.release.set()
        assert (await client.answer(3)).messages == [b"3"]


# --- headers --------------------------------------------------------------------------


async def test_a_header_bomb_ends_its_connection_in_little_memory(
    autojump_clock: MockClock,
) -> None:
    async with open_harness() as harness:
        client = RawClient(harness.stream())
        encoder = hpack.Encoder()
        # One large entry in the table, and then a byte for each copy of it.
        block = encoder.encode([("x", "y" * 3000)]) + b"\xbe" * 10_000
        await client.send(hostile.PREFACE, settings({}))
        with little_memory(10 * MIB):
            await client.send(frame(hostile.HEADERS, END_HEADERS | 1, 1, block))
            await client.drained()
        assert client.goaways[0][1] == ENHANCE_YOUR_CALM
        await served(harness)


async def test_seventy_kilobytes_of_headers_and_endless_continuation(
    autojump_clock: MockClock,
) -> None:
    async with open_harness() as harness:
        victim = await harness.client()
        await victim.send(victim.call(1, PARK, b"still here"))
        client = await harness.client()
        await client.send(client.call(1, PARK, b"pending"))
        block = client.block([("x", "y" * 70_000)])
        with little_memory(10 * MIB):
            await client.send(frame(hostile.HEADERS, 0, 3, block[:16384]))
            with suppress(trio.BrokenResourceError):
                for _ in range(200):
                    await client.send(frame(hostile.CONTINUATION, 0, 3, block[16384:32768]))
                    await trio.lowlevel.checkpoint()
            await client.drained()
        assert client.goaways == [(1, ENHANCE_YOUR_CALM, b"too_many_continuations")]
        assert harness.service.cancelled == [b"pending"]
        harness.service.release.set()
        assert (await victim.answer(1)).messages == [b"still here"]


async def test_many_small_continuations_are_no_way_around(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        await client.send(
            client.head(1, ECHO).replace(b"\x01\x04", b"\x01\x00", 1),
            *(frame(hostile.CONTINUATION, 0, 1) for _ in range(10_000)),
        )
        await client.drained()
        assert client.goaways[0][1] == ENHANCE_YOUR_CALM


async def test_headers_that_all_differ_are_not_kept(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        with little_memory(MIB):
            for number in range(150):
                client.writes.clear()
                client.answers.clear()
                await client.request(ECHO, b"", ("x", f"{number:01900}"))


# --- floods that are to be answered ---------------------------------------------------


@pytest.mark.parametrize("attack", [ping(), settings({}), settings({4: 1})])
async def test_a_flood_whose_answers_nobody_reads_is_not_read_either(
    autojump_clock: MockClock, attack: bytes
) -> None:
    async with open_harness(ServerConfig(stall_timeout=20)) as harness:
        sender, their_receiver = lockstep_stream_one_way_pair()
        their_sender, receiver = memory_stream_one_way_pair()
        gate = Gate()
        gate.guard(their_sender)
        theirs = trio.StapledStream(their_sender, their_receiver)
        harness.nursery.start_soon(harness.server.serve_stream, theirs)
        client = RawClient(trio.StapledStream(sender, receiver))
        await client.start()
        gate.shut = True
        start = trio.current_time()
        with pytest.raises(trio.BrokenResourceError):
            # This long the server takes no more of it, and then it closes.
            await client.send(attack * 100_000)
        assert 20 <= trio.current_time() - start <= 60
        await served(harness)


async def test_twenty_thousand_pings_are_answered_in_order(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        payloads = [b"%08d" % number for number in range(20_000)]
        await client.send(*(ping(payload) for payload in payloads))
        await client.until(lambda: len(client.pongs) == 20_000)
        assert client.pongs == payloads
        assert client.goaways == []


# --- requests that never end, and giants ----------------------------------------------


async def test_incomplete_requests_are_bounded_and_the_one_too_many_is_refused(
    autojump_clock: MockClock,
) -> None:
    async with open_harness(ServerConfig(max_buffered_bytes=100_000)) as harness:
        client = await harness.client()
        half = data(1, prefixed(b"x" * 60_000)[:40_000], end=False)
        for number in (1, 3, 5):
            await client.send(client.head(number, ECHO), half.replace(b"\0\0\0\x01", _id(number)))
        answer = await client.answer(5)
        assert answer.reset == REFUSED_STREAM
        for number in (1, 3):
            await client.send(data(number, b"x" * 20_005))
            assert (await client.answer(number)).messages[0][-20_000:] == b"x" * 20_000
        client.next_id = 7
        assert (await client.request(ECHO, b"y" * 90_000)).messages == [b"y" * 90_000]


def _id(number: int) -> bytes:
    return number.to_bytes(4, "big")


async def test_a_request_that_never_ends_costs_a_bounded_memory(autojump_clock: MockClock) -> None:
    async with open_harness(ServerConfig(max_message_bytes=100_000)) as harness:
        client = await harness.client()
        # Message after message, and no end of the stream.
        piece = data(1, prefixed(b"x" * 1000) * 100, end=False)
        with little_memory(4 * MIB):
            await client.send(client.head(1, ECHO))
            for _ in range(200):
                await client.send(piece)
                await wait_all_tasks_blocked()
                client.writes.clear()
        assert (await client.answer(1)).status == 11
        await served(harness)


# --- garbage --------------------------------------------------------------------------


@given(
    st.lists(
        st.one_of(
            st.binary(max_size=40),
            st.builds(
                frame,
                st.integers(0, 10),
                st.integers(0, 255),
                st.sampled_from([0, 1, 2, 3, 2**31 - 1]),
                st.binary(max_size=20),
            ),
        ),
        max_size=8,
    )
)
def test_garbage_ends_at_most_its_own_connection(pieces: list[bytes]) -> None:
    async def main() -> None:
        async with open_harness() as harness:
            client = await harness.client()
            with suppress(trio.BrokenResourceError):
                await client.send(client.call(1, PARK, b"me"), *pieces)
                await wait_all_tasks_blocked()
                await client.stream.aclose()
            await served(harness)
            await wait_all_tasks_blocked()
            assert harness.service.alive == 0
            assert not harness.nursery.child_tasks

    trio.run(main, clock=MockClock(autojump_threshold=0))


async def test_hostile_peers_make_no_errors_in_the_log(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="sepp_trio")
    async with open_harness() as harness:
        for attack in (b"\xff" * 100, window_update(0, 0), data(7, b"x")):
            client = await harness.client()
            await client.send(attack)
            await client.drained()
    assert len(caplog.records) == 3
    assert all(record.levelno == logging.INFO for record in caplog.records)
    assert not any(record.exc_info for record in caplog.records)
