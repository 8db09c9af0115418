"""The server's half of deadlines: ``grpc-timeout`` (spec 14.5, trial 66)."""

from __future__ import annotations

import pytest
import trio
from grpclib.const import Cardinality, Handler
from trio.testing import MockClock

from sepp_trio.transport.server import GrpcServer, ServerCall
from tests.transport.hostile import END_HEADERS, HEADERS, RawClient, data, frame, prefixed
from tests.transport.server_tools import ECHO, PARK, STUBBORN, BytesCodec, open_harness

CANCELLED = 1


@pytest.mark.parametrize(
    ("timeout", "seconds"),
    [
        ("1500m", 1.5),
        ("2S", 2),
        ("00000002S", 2),
        ("3M", 180),
        ("1H", 3600),
        ("250u", 0.00025),
        ("99999999n", 0.099999999),
    ],
)
async def test_a_call_ends_when_its_timeout_has_passed(
    autojump_clock: MockClock, timeout: str, seconds: float
) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        start = trio.current_time()
        answer = await client.request(PARK, b"me", ("grpc-timeout", timeout))
        assert (answer.status, answer.message) == (CANCELLED, "Timeout%20expired")
        assert trio.current_time() - start == pytest.approx(seconds)
        assert harness.service.cancelled == [b"me"]


@pytest.mark.parametrize("timeout", ["0m", "1n", "0H"])
async def test_a_timeout_of_nothing_ends_a_call_that_waits_at_once(
    autojump_clock: MockClock, timeout: str
) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        start = trio.current_time()
        assert (await client.request(PARK, b"", ("grpc-timeout", timeout))).status == CANCELLED
        assert trio.current_time() - start < 0.001


@pytest.mark.parametrize(
    "timeout", ["", "S", "abc", "123456789S", "-1S", "+1S", " 1S", "1 S", "1.5S", "1s", "٣S"]
)
async def test_a_timeout_that_does_not_parse_is_ignored(
    autojump_clock: MockClock, timeout: str
) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        await client.send(client.call(1, PARK, b"me", ("grpc-timeout", timeout)))
        await trio.sleep(25)
        harness.service.release.set()
        assert (await client.answer(1)).messages == [b"me"]


async def test_an_answer_in_time_is_not_touched(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        answer = await client.request(ECHO, b"me", ("grpc-timeout", "1S"))
        assert answer.messages == [b"me"]
        await trio.sleep(2)
        assert (await client.request(ECHO, b"on")).messages == [b"on"]


async def test_a_handler_that_answers_in_spite_of_its_timeout_is_heard(
    autojump_clock: MockClock,
) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        await client.send(client.call(1, STUBBORN, b"me", ("grpc-timeout", "1S")))
        await trio.sleep(2)
        harness.service.release.set()
        assert (await client.answer(1)).messages == [b"me"]


async def test_the_timeout_counts_from_the_headers_on(
    autojump_clock: MockClock,
) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        start = trio.current_time()
        await client.send(client.head(1, PARK, ("grpc-timeout", "3S")))
        await trio.sleep(2)
        await client.send(data(1, prefixed(b"me")))
        assert (await client.answer(1)).status == CANCELLED
        assert trio.current_time() - start == pytest.approx(3)


async def test_handlers_see_the_deadline(autojump_clock: MockClock) -> None:
    seen: list[float] = []

    async def handler(call: ServerCall) -> None:
        seen.append(trio.current_effective_deadline() - trio.current_time())
        await call.send_message(b"")

    server = GrpcServer(
        {ECHO: Handler(handler, Cardinality.UNARY_UNARY, bytes, bytes)}, codec=BytesCodec()
    )
    async with trio.open_nursery() as nursery:
        ours, theirs = trio.testing.memory_stream_pair()
        nursery.start_soon(server.serve_stream, theirs)
        client = RawClient(ours)
        await client.start()
        await client.request(ECHO, b"", ("grpc-timeout", "7S"))
        await client.request(ECHO)
        await ours.aclose()
    assert seen == [pytest.approx(7), float("inf")]


async def test_a_header_that_only_looks_like_a_timeout_is_none(autojump_clock: MockClock) -> None:
    # The decoder looks for the literal at the end of a block; here it stands
    # within the value of another header.
    async with open_harness() as harness:
        client = await harness.client()
        value = b"odd\x10\x0cgrpc-timeout\x021n"
        block = client.head(1, PARK)[9:] + b"\x10\x05x-odd" + bytes((len(value),)) + value
        await client.send(frame(HEADERS, END_HEADERS, 1, block), data(1, prefixed(b"me")))
        await trio.sleep(20)
        harness.service.release.set()
        assert (await client.answer(1)).messages == [b"me"]


async def test_a_timeout_is_found_wherever_it_stands(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        literal = b"\x10\x0cgrpc-timeout\x021S"
        plain = client.head(1, PARK)[9:]
        other = client.block([("x-other", "1")])
        for block in (plain + literal, plain + literal + other, plain + other + literal):
            number = client.new_id()
            start = trio.current_time()
            await client.send(
                frame(HEADERS, END_HEADERS, number, block), data(number, prefixed(b""))
            )
            assert (await client.answer(number)).status == CANCELLED
            assert trio.current_time() - start == pytest.approx(1)
