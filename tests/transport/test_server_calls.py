"""What a call to the server is answered with."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
import trio
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from trio.testing import MockClock

from sepp_trio.transport.server import GrpcServer, ServerCall, ServerConfig
from tests.transport.hostile import RawClient, data, prefixed
from tests.transport.server_tools import (
    ECHO,
    FAIL,
    PARK,
    PREFIX,
    WATCH,
    BytesCodec,
    open_harness,
)


async def test_an_answer_is_headers_message_and_trailers_in_one_write(
    autojump_clock: MockClock,
) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        before = len(client.writes)
        answer = await client.request(ECHO, b"hello")
        assert [name for name, _ in answer.headers] == [":status", "content-type", "date"]
        assert answer.headers[:2] == [(":status", "200"), ("content-type", "application/grpc")]
        assert answer.messages == [b"hello"]
        assert answer.trailers == [("grpc-status", "0")]
        assert len(client.writes) == before + 1


async def test_calls_that_came_in_one_read_are_answered_in_one_write(
    autojump_clock: MockClock,
) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        before = len(client.writes)
        numbers = [client.new_id() for _ in range(50)]
        await client.send(*(client.call(number, ECHO, b"%d" % number) for number in numbers))
        for number in numbers:
            assert (await client.answer(number)).messages == [b"%d" % number]
        assert len(client.writes) == before + 1


async def test_an_empty_message_is_an_answer(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        assert (await client.request(ECHO)).data == prefixed(b"")


async def test_calls_run_concurrently_and_end_in_any_order(
    autojump_clock: MockClock,
) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        parked = client.new_id()
        await client.send(client.call(parked, PARK, b"late"))
        assert (await client.request(ECHO, b"soon")).messages == [b"soon"]
        assert parked not in client.answers
        harness.service.release.set()
        assert (await client.answer(parked)).messages == [b"late"]


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("job not found", "job%20not%20found"),
        ("naïve – 💥", "na%C3%AFve%20%E2%80%93%20%F0%9F%92%A5"),
        ('100 % "quoted" `back`', "100%20%25%20%22quoted%22%20%60back%60"),
        ("plain: it's, (a\\b)", "plain:%20it's,%20(a\\b)"),
        ("\udcff\r\n", "%3F%0D%0A"),
    ],
)
async def test_an_error_is_headers_only_with_its_status_and_encoded_text(
    autojump_clock: MockClock, text: str, encoded: str
) -> None:
    async with open_harness() as harness:
        harness.service.failure = GRPCError(Status.NOT_FOUND, text)
        client = await harness.client()
        answer = await client.request(FAIL)
        assert (answer.status, answer.message) == (5, encoded)
        assert answer.trailers is None
        assert answer.data == b""


@pytest.mark.parametrize("character", ["x", "💥"])
async def test_a_very_long_error_text_is_cut(autojump_clock: MockClock, character: str) -> None:
    async with open_harness() as harness:
        harness.service.failure = GRPCError(Status.ABORTED, character * 100_000)
        client = await harness.client()
        message = (await client.request(FAIL)).message
        assert message is not None
        assert 4000 < len(message) <= 4096


async def test_an_error_without_text_has_no_message_header(
    autojump_clock: MockClock,
) -> None:
    async with open_harness() as harness:
        harness.service.failure = GRPCError(Status.ABORTED)
        client = await harness.client()
        answer = await client.request(FAIL)
        assert (answer.status, answer.message) == (10, None)


@pytest.mark.parametrize(
    "failure", [ValueError("secret"), ExceptionGroup("secret", [KeyError("secret")])]
)
async def test_a_crash_is_internal_says_nothing_and_is_logged_once(
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    failure: Exception,
) -> None:
    async with open_harness() as harness:
        harness.service.failure = failure
        client = await harness.client()
        answer = await client.request(FAIL)
        assert (answer.status, answer.message) == (13, "internal%20error")
        assert b"secret" not in b"".join(client.writes)
        (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert record.exc_info is not None
        assert record.exc_info[1] is failure
        assert (await client.request(ECHO, b"on")).messages == [b"on"]


async def test_a_crash_on_the_way_out_of_a_cancelled_server_stays_in_its_call(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def handler(call: ServerCall) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("while leaving")

    server = GrpcServer(
        {ECHO: Handler(handler, Cardinality.UNARY_UNARY, bytes, bytes)}, codec=BytesCodec()
    )
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.serve_stream, theirs)
        client = RawClient(ours)
        await client.start()
        await client.send(client.call(1, ECHO))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "while leaving" in caplog.text
    assert ECHO in record.getMessage()


async def test_a_message_that_does_not_decode_is_internal_and_no_error_of_ours(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        answer = await client.request(ECHO, b"bad")
        assert answer.status == 13
        assert not [record for record in caplog.records if record.levelno > logging.INFO]


async def test_a_unary_handler_must_answer_exactly_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def twice(call: ServerCall) -> None:
        assert await call.recv_message() == b"once"
        assert await call.recv_message() is None
        await call.send_message(b"1")
        await call.send_message(b"2")

    async def never(call: ServerCall) -> None:
        await call.recv_message()

    unary = Cardinality.UNARY_UNARY
    server = GrpcServer(
        {
            PREFIX + "Twice": Handler(twice, unary, bytes, bytes),
            PREFIX + "Never": Handler(never, unary, bytes, bytes),
        },
        codec=BytesCodec(),
    )
    async with trio.open_nursery() as nursery:
        ours, theirs = trio.testing.memory_stream_pair()
        nursery.start_soon(server.serve_stream, theirs)
        client = RawClient(ours)
        await client.start()
        assert (await client.request(PREFIX + "Twice", b"once")).status == 13
        assert (await client.request(PREFIX + "Never", b"once")).status == 13
        assert "a unary call has one answer" in caplog.text
        assert "gave no answer" in caplog.text
        await ours.aclose()


async def test_a_handler_sees_route_and_headers(autojump_clock: MockClock) -> None:
    seen: list[tuple[str, Sequence[tuple[str, str]]]] = []

    async def handler(call: ServerCall) -> None:
        seen.append((call.route, call.headers))
        await call.send_message(b"")

    server = GrpcServer(
        {ECHO: Handler(handler, Cardinality.UNARY_UNARY, bytes, bytes)}, codec=BytesCodec()
    )
    async with trio.open_nursery() as nursery:
        ours, theirs = trio.testing.memory_stream_pair()
        nursery.start_soon(server.serve_stream, theirs)
        client = RawClient(ours)
        await client.start()
        await client.request(ECHO, b"", ("x-key", "one"), ("x-key", "two"))
        await ours.aclose()
    ((route, headers),) = seen
    assert route == ECHO
    assert [value for name, value in headers if name == "x-key"] == ["one", "two"]


# --- server streaming -----------------------------------------------------------------


async def test_a_streaming_handler_sends_each_message_as_it_comes(
    autojump_clock: MockClock,
) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        await client.send(client.call(1, WATCH, b"abc"))
        await client.until(lambda: 1 in client.answers and len(client.answers[1].data) == 18)
        assert client.answers[1].messages == [b"a", b"b", b"c"]
        assert client.answers[1].trailers is None
        harness.service.release.set()
        assert (await client.answer(1)).trailers == [("grpc-status", "0")]


async def test_a_streaming_handler_may_send_nothing(
    autojump_clock: MockClock,
) -> None:
    async with open_harness() as harness:
        harness.service.release.set()
        client = await harness.client()
        answer = await client.request(WATCH, b"")
        assert (answer.status, answer.data) == (0, b"")


async def test_a_streaming_handler_that_fails_after_a_message_ends_with_its_status(
    autojump_clock: MockClock,
) -> None:
    async def handler(call: ServerCall) -> None:
        await call.send_message(b"one")
        raise GRPCError(Status.NOT_FOUND, "gone")

    server = GrpcServer(
        {ECHO: Handler(handler, Cardinality.UNARY_STREAM, bytes, bytes)}, codec=BytesCodec()
    )
    async with trio.open_nursery() as nursery:
        ours, theirs = trio.testing.memory_stream_pair()
        nursery.start_soon(server.serve_stream, theirs)
        client = RawClient(ours)
        await client.start()
        answer = await client.request(ECHO)
        assert answer.messages == [b"one"]
        assert answer.trailers == [("grpc-status", "5"), ("grpc-message", "gone")]
        await ours.aclose()


async def test_a_status_cannot_follow_half_a_streamed_message(
    autojump_clock: MockClock,
) -> None:
    async with open_harness() as harness:
        client = await harness.client({4: 3}, polite=False)
        await client.send(client.call(1, WATCH, b"x", ("grpc-timeout", "5S")))
        answer = await client.answer(1)
        assert answer.data == b"\0\0\0"
        assert answer.reset == 8
        assert harness.service.undelivered == [b"x"]


async def test_a_streaming_handler_that_shields_itself_does_not_wait_for_a_peer_that_left(
    autojump_clock: MockClock,
) -> None:
    sent: list[bytes] = []

    async def handler(call: ServerCall) -> None:
        with trio.CancelScope(shield=True):
            for message in (b"one", b"two", b"three"):
                await call.send_message(message)
                sent.append(message)

    server = GrpcServer(
        {ECHO: Handler(handler, Cardinality.UNARY_STREAM, bytes, bytes)}, codec=BytesCodec()
    )
    async with trio.open_nursery() as nursery:
        ours, theirs = trio.testing.memory_stream_pair()
        nursery.start_soon(server.serve_stream, theirs)
        client = RawClient(ours, polite=False)
        await client.start({4: 10})
        await client.send(client.call(1, ECHO))
        await trio.testing.wait_all_tasks_blocked()
        assert sent == [b"one"]
        await ours.aclose()
    assert sent == [b"one", b"two", b"three"]


async def test_nothing_is_kept_of_calls_that_are_over(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        (link,) = harness.server._links
        harness.service.release.set()
        for route in (ECHO, FAIL, PARK, WATCH):
            for message in (b"", b"me", b"bad"):
                await client.request(route, message)
        number = client.new_id()
        await client.send(client.call(number, PARK, b"", ("grpc-timeout", "1n")))
        await client.answer(number)
        await trio.testing.wait_all_tasks_blocked()
        assert (link._calls, link.core.streams, link.running) == ({}, {}, 0)
        # Nor of the tasks, when there were no calls for a while.
        await client.until(lambda: len(client.pings) == 2)
        assert link.workers._idle == []
        assert (await client.request(ECHO, b"on")).messages == [b"on"]


async def test_a_stream_with_faults_of_its_own_harms_nobody_else(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise RuntimeError("not what streams raise")

    async with open_harness() as harness:
        ours, theirs = trio.testing.memory_stream_pair()
        theirs.receive_stream.receive_some_hook = fail
        harness.nursery.start_soon(harness.server.serve_stream, theirs)
        await RawClient(ours).drained()
        await trio.testing.wait_all_tasks_blocked()
        assert "not what streams raise" in caplog.text
        client = await harness.client()
        assert (await client.request(ECHO, b"fine")).messages == [b"fine"]


async def test_streams_of_requests_are_refused_at_once(autojump_clock: MockClock) -> None:
    async def handler(call: ServerCall) -> None: ...

    for cardinality in (Cardinality.STREAM_UNARY, Cardinality.STREAM_STREAM):
        with pytest.raises(ValueError, match="takes a stream of requests"):
            GrpcServer({ECHO: Handler(handler, cardinality, bytes, bytes)}, codec=BytesCodec())


# --- who may call what ----------------------------------------------------------------


@pytest.mark.parametrize("path", ["/other.Service/Echo", "/", "/Echo", "*", PREFIX + "Other"])
async def test_an_unknown_path_is_unimplemented_without_a_text(
    autojump_clock: MockClock, path: str
) -> None:
    async with open_harness() as harness:
        client = await harness.client()
        answer = await client.request(path)
        assert (answer.status, answer.message) == (12, None)


async def test_authorize_comes_after_the_service_and_before_everything_else(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []

    def authorize(route: str, headers: Sequence[tuple[str, str]]) -> None:
        asked.append(route)
        key = dict(headers).get("authorization")
        if key is None:
            raise GRPCError(Status.UNAUTHENTICATED, "a key is wanted")
        if key == "crash":
            raise RuntimeError("secret")

    async with open_harness(authorize=authorize) as harness:
        client = await harness.client()
        assert (await client.request("/other.Service/Echo")).status == 12
        assert asked == []
        assert (await client.request(PREFIX + "Other")).status == 16
        assert (await client.request(ECHO, b"bad")).status == 16
        assert (await client.request(ECHO, b"", ("grpc-encoding", "gzip"))).status == 16
        assert (await client.request(PREFIX + "Other", b"", ("authorization", "k"))).status == 12
        assert (await client.request(ECHO, b"me", ("authorization", "k"))).messages == [b"me"]
        answer = await client.request(ECHO, b"me", ("authorization", "crash"))
        assert (answer.status, answer.message) == (13, "internal%20error")
        assert "secret" in caplog.text


async def test_a_refusal_does_not_wait_for_the_body(
    autojump_clock: MockClock,
) -> None:
    async with open_harness(ServerConfig(max_message_bytes=1000)) as harness:
        client = await harness.client()
        await client.send(client.head(1, PREFIX + "Other"))
        answer = await client.answer(1)
        assert answer.status == 12
        await client.until(lambda: answer.reset is not None)
        assert answer.reset == 0
        # What was under way is ignored, and the connection stays.
        await client.send(data(1, b"x" * 5000))
        client.next_id = 3
        assert (await client.request(ECHO, b"on")).messages == [b"on"]
        assert client.goaways == []
