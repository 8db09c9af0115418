"""Requests that are odd or wrong, and what the real server says to them (spec 14.4)."""

from __future__ import annotations

import contextlib
import struct

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

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
    window_update,
)
from tests.transport.server_tools import ECHO, PARK, open_harness

OK, INTERNAL, OUT_OF_RANGE, UNIMPLEMENTED = 0, 13, 11, 12
PROTOCOL_ERROR, FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR, ENHANCE_YOUR_CALM = 1, 3, 6, 11


# --- the server does not look ---------------------------------------------------------


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "application/json",
        "application/grpc-web",
        "application/grpc+proto",
        "application/grpc+json",
    ],
)
async def test_the_content_type_is_not_looked_at(
    autojump_clock: MockClock, content_type: str | None
) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        extra = [("content-type", content_type)] if content_type else []
        await client.send(
            client.head(1, ECHO, *extra, without=() if extra else ["content-type"]),
            data(1, prefixed(b"me")),
        )
        answer = await client.answer(1)
        assert answer.messages == [b"me"]
        assert ("content-type", "application/grpc") in answer.headers


@pytest.mark.parametrize("absent", ["te", ":authority"])
async def test_headers_that_may_be_absent(autojump_clock: MockClock, absent: str) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        await client.send(client.head(1, ECHO, without=[absent]), data(1, prefixed(b"me")))
        assert (await client.answer(1)).messages == [b"me"]


async def test_the_method_is_not_looked_at(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        await client.send(client.head(1, ECHO, method="PUT"), data(1, prefixed(b"me")))
        assert (await client.answer(1)).messages == [b"me"]
        await client.send(client.head(3, ECHO, method="GET", end=True))
        assert (await client.answer(3)).status == INTERNAL


async def test_trailers_and_one_byte_frames_are_served(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        trailers = frame(hostile.HEADERS, END_HEADERS | 1, 1, client.block([("x-last", "1")]))
        await client.send(
            client.head(1, ECHO), data(1, prefixed(b"me"), end=False, size=1), trailers
        )
        assert (await client.answer(1)).messages == [b"me"]


async def test_padding_priority_and_continuation_are_understood(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        block = client.head(1, ECHO)[9:]
        padded = bytes((3,)) + struct.pack(">IB", 0, 9) + block[:7] + b"\0\0\0"
        await client.send(
            frame(hostile.HEADERS, 0x8 | 0x20, 1, padded),
            frame(hostile.CONTINUATION, END_HEADERS, 1, block[7:]),
            frame(hostile.DATA, 0x8 | 1, 1, b"\x02" + prefixed(b"me") + b"\0\0"),
        )
        assert (await client.answer(1)).messages == [b"me"]


async def test_a_call_runs_only_when_its_request_has_ended(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        await client.send(client.head(1, ECHO), data(1, prefixed(b"me"), end=False))
        await client.send(ping())
        await client.until(lambda: bool(client.pongs))
        assert harness.service.started == []
        await client.send(data(1, b""))
        assert (await client.answer(1)).messages == [b"me"]


# --- messages -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", INTERNAL),
        (b"\0\0\0", INTERNAL),
        (prefixed(b"hello")[:-1], INTERNAL),
        (prefixed(b"hello") + b"x", INTERNAL),
        (prefixed(b"hello") + prefixed(b"again")[:-1], INTERNAL),
        (prefixed(b"hello") + prefixed(b"again"), OK),
        (prefixed(b"hello", flag=1), INTERNAL),
        (prefixed(b"hello", flag=2), INTERNAL),
    ],
)
async def test_what_is_no_message_is_internal(
    autojump_clock: MockClock, body: bytes, status: int
) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        await client.send(client.head(1, ECHO), data(1, body))
        answer = await client.answer(1)
        assert answer.status == status
        assert answer.messages == ([b"hello"] if status == OK else [])


async def test_a_request_of_headers_only_is_internal(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        await client.send(client.head(1, ECHO, end=True))
        assert (await client.answer(1)).status == INTERNAL


@pytest.mark.parametrize("flag", [0, 1])
async def test_compression_is_unimplemented_and_identity_is_not(
    autojump_clock: MockClock, flag: int
) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        gzip = ("grpc-encoding", "gzip")
        await client.send(client.head(1, ECHO, gzip), data(1, prefixed(b"me", flag)))
        answer = await client.answer(1)
        assert answer.status == UNIMPLEMENTED
        assert ("grpc-accept-encoding", "identity") in answer.headers
        client.next_id = 3
        answer = await client.request(ECHO, b"me", ("grpc-encoding", "identity"))
        assert answer.messages == [b"me"]


async def test_a_message_over_the_limit_is_refused_by_its_prefix(autojump_clock: MockClock) -> None:
    async with open_harness(ServerConfig(max_message_bytes=1000)) as harness:
        client = await harness.client()
        assert (await client.request(ECHO, b"x" * 1000)).status == OK
        number = client.new_id()
        await client.send(client.head(number, ECHO), data(number, b"\0\0\0\x03", end=False))
        await client.send(data(number, b"\xe9", end=False))
        answer = await client.answer(number)
        assert answer.status == OUT_OF_RANGE
        await client.until(lambda: answer.reset is not None)
        assert answer.reset == 0
        await client.send(data(number, b"x" * 1001))
        assert (await client.request(ECHO, b"on")).messages == [b"on"]


async def test_a_message_that_claims_four_gigabytes_costs_nothing(
    autojump_clock: MockClock,
) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        await client.send(client.head(1, ECHO), data(1, b"\0\xff\xff\xff\xff", end=False))
        assert (await client.answer(1)).status == OUT_OF_RANGE


# --- headers --------------------------------------------------------------------------


def _filler(client: RawClient, size: int) -> tuple[str, str]:
    """A header that brings the list of a request to ``size``."""
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", ECHO),
        (":authority", "test"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ]
    used = sum(len(name) + len(value) + 32 for name, value in fields)
    return ("x", "y" * (size - used - 33))


async def test_a_header_list_over_16384_is_431_and_a_reset(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        assert (await client.request(ECHO, b"", _filler(client, 16384))).status == OK
        number = client.new_id()
        await client.send(client.call(number, ECHO, b"", _filler(client, 16385)))
        await client.until(lambda: number in client.answers and client.answers[number].ended)
        answer = client.answers[number]
        assert answer.headers == [(":status", "431")]
        await client.until(lambda: answer.reset is not None)
        assert answer.reset == PROTOCOL_ERROR
        assert (await client.request(ECHO, b"on")).messages == [b"on"]


@pytest.mark.parametrize("absent", [":scheme", ":path", ":method"])
async def test_a_request_without_its_pseudo_headers_is_reset_each_time(
    autojump_clock: MockClock, absent: str
) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        numbers = [client.new_id() for _ in range(1030)]
        for number in numbers:
            await client.send(client.head(number, ECHO, without=[absent], end=True))
        for number in numbers:
            assert (await client.answer(number)).reset == PROTOCOL_ERROR
        assert (await client.request(ECHO, b"on")).messages == [b"on"]
        assert client.goaways == []


async def test_a_header_name_with_capitals_is_reset(autojump_clock: MockClock) -> None:
    # The real server ends the whole connection; the protocol asks for the
    # stream only, and so the other calls live.
    async with open_harness() as harness:
        client = await harness.client()
        await client.send(client.call(1, ECHO, b"", ("X-Capital", "1")))
        assert (await client.answer(1)).reset == PROTOCOL_ERROR
        client.next_id = 3
        assert (await client.request(ECHO, b"on")).messages == [b"on"]


async def test_two_hundred_kilobytes_of_continuation_end_the_connection(
    autojump_clock: MockClock,
) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        await client.send(frame(hostile.HEADERS, 0, 1, b"\0" * 16384))
        with contextlib.suppress(trio.BrokenResourceError):
            for _ in range(13):
                await client.send(frame(hostile.CONTINUATION, 0, 1, b"\0" * 16384))
                await trio.lowlevel.checkpoint()
        await client.drained()
        assert client.goaways == [(0, ENHANCE_YOUR_CALM, b"too_many_continuations")]


# --- what ends a connection -----------------------------------------------------------


@pytest.mark.parametrize(
    ("attack", "code"),
    [
        (frame(hostile.DATA, 0, 1, b"x" * 16385), FRAME_SIZE_ERROR),
        (data(1, b"x"), PROTOCOL_ERROR),
        (reset(1), PROTOCOL_ERROR),
        (window_update(1, 1), PROTOCOL_ERROR),
        (frame(hostile.HEADERS, END_HEADERS, 2, b""), PROTOCOL_ERROR),
        (frame(hostile.HEADERS, END_HEADERS, 0, b""), PROTOCOL_ERROR),
        (window_update(0, 2**31 - 1), FLOW_CONTROL_ERROR),
        (window_update(0, 0), PROTOCOL_ERROR),
        (hostile.settings({4: 2**31}), FLOW_CONTROL_ERROR),
        (hostile.settings({5: 1}), PROTOCOL_ERROR),
        (frame(hostile.SETTINGS, 0, 0, b"12345"), FRAME_SIZE_ERROR),
        (frame(hostile.PING, 0, 0, b"1"), FRAME_SIZE_ERROR),
        (frame(hostile.PUSH, END_HEADERS, 1, b"1234"), PROTOCOL_ERROR),
        (frame(hostile.HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff"), 9),
    ],
)
async def test_a_broken_protocol_ends_its_connection_with_a_goodbye(
    autojump_clock: MockClock, attack: bytes, code: int
) -> None:
    async with open_harness() as harness:
        other = await harness.client()
        await other.send(other.call(1, PARK, b"other"))
        client = await harness.client()
        await client.send(attack)
        await client.drained()
        ((_, said, _),) = client.goaways
        assert said == code
        harness.service.release.set()
        assert (await other.answer(1)).messages == [b"other"]


async def test_a_stream_number_that_goes_back_ends_the_connection(
    autojump_clock: MockClock,
) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        await client.send(client.call(5, ECHO))
        await client.answer(5)
        await client.send(client.call(3, ECHO))
        await client.drained()
        assert client.goaways[-1][:2] == (5, PROTOCOL_ERROR)


async def test_what_is_to_be_ignored_is_ignored(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        await client.request(ECHO)
        await client.send(
            reset(1),
            window_update(1, 5),
            frame(hostile.PRIORITY, 0, 1, struct.pack(">IB", 0, 1)),
            frame(0xBE, 0xEF, 77, b"whatever"),
            hostile.settings({0xBEEF: 1}),
        )
        assert (await client.request(ECHO, b"on")).messages == [b"on"]


@pytest.mark.parametrize(
    "opening", [b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"\x16\x03\x01\x02\x00", b"\0" * 100]
)
async def test_what_is_no_http2_gets_settings_and_a_goodbye(
    autojump_clock: MockClock, opening: bytes
) -> None:
    async with open_harness() as harness:
        client = RawClient(harness.stream())
        await client.until(lambda: bool(client.settings))
        await client.send(opening)
        await client.drained()
        assert client.goaways == [(0, PROTOCOL_ERROR, b"no HTTP/2 preface")]


async def test_the_server_speaks_first_and_names_its_limits(autojump_clock: MockClock) -> None:
    async with open_harness(ServerConfig(max_calls=77)) as harness:
        client = RawClient(harness.stream())
        await client.until(lambda: bool(client.settings))
        assert client.settings == [{1: 0, 3: 77, 4: 1048576, 6: 16384}]
        await client.until(lambda: bool(client.credit))
        assert client.credit == {0: 983041}
