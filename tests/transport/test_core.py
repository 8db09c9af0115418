"""The core by itself: bounds that h2 has no word for."""

from __future__ import annotations

from collections import OrderedDict

import pytest

from sepp_trio.transport import CallError
from sepp_trio.transport._client_role import ClientConnection
from sepp_trio.transport._frames import (
    MAX_STREAM_ID,
    Code,
    ConnectionFault,
    StreamFault,
    code_name,
    frame,
    settings,
)
from sepp_trio.transport._headers import encode_block
from sepp_trio.transport._http2 import Http2Config
from sepp_trio.transport._sending import WRITE_SIZE
from sepp_trio.transport._server_role import ServerConnection
from sepp_trio.transport._server_stream import ServerStream
from sepp_trio.transport._status import message_of

from .h2_oracle import HEAD_BLOCK, REQUEST_BLOCK, TRAILER_BLOCK, Call, ClientWorld, prefixed
from .peer import HEADS, data, headers, message, rst_stream, window_update

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Client:
    """A client core that has been greeted."""

    def __init__(self, config: Http2Config | None = None, values: dict[int, int] | None = None):
        self.waiting: tuple[OrderedDict[Call, None], OrderedDict[Call, None]] = (
            OrderedDict(),
            OrderedDict(),
        )
        self.woken = 0
        self.core = ClientConnection(config or Http2Config(), self.waiting, self._wake)  # type: ignore[arg-type]
        self.core.feed(settings(values or {}))
        self.core.data_to_send()

    def _wake(self) -> None:
        self.woken += 1

    def call(self, payload: bytes = b"", *, urgent: bool = False) -> Call:
        call = Call(payload, urgent)
        self.waiting[0 if urgent else 1][call] = None
        return call


def test_more_data_than_the_streams_window_resets_the_stream() -> None:
    client = Client(Http2Config(stream_window=1000))
    call = client.call()
    client.core.data_to_send()
    client.core.feed(headers(1, HEADS) + data(1, message(b"x" * 1100)))
    assert call.outcomes == [Code.FLOW_CONTROL_ERROR]
    assert client.core.data_to_send() == rst_stream(1, Code.FLOW_CONTROL_ERROR)


def test_more_data_than_the_connections_window_ends_the_connection() -> None:
    client = Client()
    client.call()
    client.core.data_to_send()
    # Credit comes back so early that no peer of ours can get here.
    client.core._receive_window = 10_000
    with pytest.raises(ConnectionFault) as caught:
        client.core.feed(headers(1, HEADS) + data(1, message(b"x" * 11_000)))
    assert caught.value.code is Code.FLOW_CONTROL_ERROR
    # Nothing is done any more, and no call is begun.
    client.core.feed(b"anything")
    client.call()
    assert client.core.data_to_send()[3] == 7
    assert not client.core.has_output()


def test_credit_is_given_at_half_the_window() -> None:
    client = Client(Http2Config(stream_window=1000, connection_window=65_535))
    client.call()
    client.core.data_to_send()
    client.core.feed(headers(1, HEADS) + data(1, message(b"x" * 5000)[:501]))
    assert client.core.data_to_send() == window_update(1, 501)
    client.core.feed(data(1, b"x" * 499))
    assert not client.core.has_output()


class Answered(Call):
    """A call whose outcome is what a caller would see."""

    def answered(self) -> None:
        try:
            self.outcomes.append(message_of(self))
        except CallError as error:
            self.outcomes.append(str(error))


def block(stream: int, fields: list[tuple[str, str]], flags: int = 0) -> bytes:
    """A HEADERS frame whose block can be remembered."""
    return frame(1, flags | 4, stream, encode_block(fields))


TRAILERS = [("grpc-status", "0")]
ANSWERS: dict[str, list[bytes]] = {
    "as usual": [block(1, HEADS), data(1, message(b"x")), block(1, TRAILERS, 1)],
    "empty": [block(1, HEADS), data(1, message(b"")), block(1, TRAILERS, 1)],
    "in two frames": [
        block(1, HEADS),
        data(1, message(b"xyz")[:6]),
        data(1, message(b"xyz")[6:]),
        block(1, TRAILERS, 1),
    ],
    "two messages": [
        block(1, HEADS),
        data(1, message(b"x") + message(b"y")),
        block(1, TRAILERS, 1),
    ],
    "compressed": [block(1, HEADS), data(1, message(b"x", 1)), block(1, TRAILERS, 1)],
    "an error after all": [
        block(1, HEADS),
        data(1, message(b"x")),
        block(1, [("grpc-status", "13")], 1),
    ],
    "no status": [block(1, HEADS), data(1, message(b"x")), block(1, [("a", "b")], 1)],
    "ends with its data": [block(1, HEADS), data(1, message(b"x"), 1)],
    "trailers that do not end it": [
        block(1, HEADS),
        data(1, message(b"x")),
        block(1, TRAILERS),
    ],
    "malformed trailers": [
        block(1, HEADS),
        data(1, message(b"x")),
        block(1, [*TRAILERS, ("UPPER", "x")], 1),
    ],
    "another HTTP status": [
        block(1, [(":status", "503")]),
        data(1, message(b"x")),
        block(1, TRAILERS, 1),
    ],
    "a 1xx before": [
        block(1, [(":status", "103")]),
        block(1, HEADS),
        data(1, message(b"x")),
        block(1, TRAILERS, 1),
    ],
    "headers twice": [
        block(1, HEADS),
        block(1, HEADS),
        data(1, message(b"x")),
        block(1, TRAILERS, 1),
    ],
    "too large": [
        block(1, HEADS),
        data(1, message(b"x" * 9000)),
        block(1, TRAILERS, 1),
    ],
    "beyond its window": [
        block(1, HEADS),
        data(1, message(b"x" * 9500)),
        block(1, TRAILERS, 1),
    ],
    "of a stream that is over": [
        block(1, HEADS),
        data(1, message(b"x"), 1),
        block(1, HEADS),
        data(1, message(b"x")),
        block(1, TRAILERS, 1),
    ],
    "ended by its data and by trailers": [
        block(1, HEADS),
        data(1, message(b"x"), 1),
        block(1, TRAILERS, 1),
    ],
    "a stream that never was": [
        block(99, HEADS),
        data(99, message(b"x")),
        block(99, TRAILERS, 1),
    ],
    "before the request is over": [
        block(9, HEADS),
        data(9, message(b"x")),
        block(9, TRAILERS, 1),
    ],
    "the data of another between": [
        block(3, HEADS),
        block(1, HEADS),
        data(3, message(b"y")),
        block(3, TRAILERS, 1),
        data(1, message(b"x")),
        block(1, TRAILERS, 1),
    ],
    "the data of another instead": [
        block(3, HEADS),
        block(1, HEADS),
        data(3, message(b"y")),
        block(1, TRAILERS, 1),
        block(3, TRAILERS, 1),
    ],
    "the trailers of another after it": [
        block(3, HEADS),
        data(3, message(b"y")),
        block(1, HEADS),
        data(1, message(b"x")),
        block(3, TRAILERS, 1),
        block(1, TRAILERS, 1),
    ],
    "data for trailers": [
        block(1, HEADS),
        data(1, message(b"x")),
        frame(0, 5, 1, encode_block(TRAILERS)),
    ],
    "trailers that go on": [
        block(1, HEADS),
        data(1, message(b"x")),
        block(1, [*TRAILERS, ("x", "y")], 1),
    ],
    "half the connection's window": [
        *(block(1, HEADS), data(1, message(b"x" * 16000)), block(1, TRAILERS, 1)),
        *(block(3, HEADS), data(3, message(b"x" * 16000)), block(3, TRAILERS, 1)),
        *(block(7, HEADS), data(7, message(b"x" * 2000)), block(7, TRAILERS, 1)),
    ],
    "mixed with another": [
        block(1, HEADS),
        block(3, HEADS),
        data(1, message(b"x")),
        data(3, message(b"y")),
        block(3, TRAILERS, 1),
        block(1, TRAILERS, 1),
    ],
    "a frame that is too long": [
        block(1, HEADS),
        frame(0, 0, 1, message(b"x" * 16380)),
        block(1, TRAILERS, 1),
    ],
}
NARROW = {
    "too large": Http2Config(max_message=8000),
    "beyond its window": Http2Config(stream_window=9000),
    "half the connection's window": Http2Config(connection_window=65_535),
}


def feed_in_pieces(client: Client, stream: bytes, size: int) -> str | None:
    """Give it the stream, so many bytes at once; what is wrong with it, if anything."""
    try:
        for at in range(0, len(stream), size):
            client.core.feed(stream[at : at + size])
    except ConnectionFault as error:
        return str(error)
    return None


@pytest.mark.parametrize("what", ANSWERS)
def test_an_answer_in_one_piece_is_taken_as_one_in_many(what: str) -> None:
    """An answer whose blocks are known is taken in one step if it is as usual."""
    seen = []
    stream = b"".join(ANSWERS[what])
    for size in (1, 10, len(stream) - 5, len(stream)):
        client = Client(NARROW.get(what))
        calls = [Answered(request, False) for request in (b"", b"", b"", b"", bytes(70_000))]
        client.waiting[1].update(dict.fromkeys(calls))
        client.core.data_to_send()
        # Every header block is known by then.
        client.core.feed(block(5, HEADS) + data(5, message(b"")) + block(5, TRAILERS, 1))
        assert calls[2].outcomes == [b""]
        for piece in ANSWERS[what]:
            if piece[3] == 1:
                client.core._decoder.decode(piece[9:])
        fault = feed_in_pieces(client, stream, size)
        seen.append(
            (
                fault,
                [call.outcomes for call in calls],
                bytes(client.core.data_to_send()),
                list(client.core.streams),
                client.core._receive_window,
                fault or client.core._rest,
                client.core.answers,
            )
        )
    assert all(one == seen[0] for one in seen)


HEAD, TAIL = block(1, HEADS), block(1, TRAILERS, 1)
OTHER_HEAD = block(1, [*HEADS, ("date", "now")])
# What may come between two answers that are alike, for the stream of the next one.
ODD: dict[str, list[bytes]] = {
    "nothing": [],
    "a longer one": [HEAD, data(1, message(b"longer")), TAIL],
    "a compressed one": [HEAD, data(1, message(b"ab", 1)), TAIL],
    "another length in its prefix": [HEAD, data(1, message(b"abc")[:-1]), TAIL],
    "other headers": [OTHER_HEAD, data(1, message(b"ab")), TAIL],
    "other trailers": [HEAD, data(1, message(b"ab")), block(1, [("grpc-status", "5")], 1)],
    "no end": [HEAD, data(1, message(b"ab")), block(1, TRAILERS)],
    "an end too early": [HEAD, data(1, message(b"ab"), 1), TAIL],
    "its data for another": [HEAD, data(5, message(b"ab")), TAIL],
    "its trailers for another": [HEAD, data(1, message(b"ab")), block(5, TRAILERS, 1)],
    "headers that end it": [block(1, HEADS, 1), data(1, message(b"ab")), TAIL],
    "a ping": [frame(6, 0, 0, b"12345678")],
    "a reset": [rst_stream(1, 8)],
    "headers before": [HEAD],
    "headers of the next one before": [block(23, HEADS)],
}


@pytest.mark.parametrize("what", ODD)
@pytest.mark.parametrize("config", [Http2Config(), Http2Config(connection_window=65_540)])
def test_answers_that_are_alike_are_taken_as_single_ones(what: str, config: Http2Config) -> None:
    """Many at once, and something odd among them."""

    def at(number: int, frames: list[bytes]) -> bytes:
        def moved(one: bytes) -> bytes:
            return one[:5] + number.to_bytes(4, "big") + one[9:] if one[8] == 1 else one

        return b"".join(map(moved, frames))

    stream = b""
    for number in range(1, 41, 2):
        odd = number == 21
        stream += at(number, ODD[what]) if odd else b""
        # The one for a stream that was given up, and the one that comes twice.
        stream += at(number, [HEAD, data(1, message(b"%02d" % number)), TAIL])
        stream += at(number, [HEAD, data(1, message(b"%02d" % number)), TAIL]) * (number == 35)
    seen = []
    for size in (1, len(stream)):
        client = Client(config)
        # The last one's request is not over when it is answered.
        calls = [Answered(bytes(70_000 * (i == 19)), False) for i in range(20)]
        client.waiting[1].update(dict.fromkeys(calls))
        while client.core.has_output():
            client.core.data_to_send()
        for piece in (HEAD, OTHER_HEAD, TAIL):
            client.core._decoder.decode(piece[9:])
        client.core._receive_window = config.connection_window // 2 + 100
        client.core.abandon(calls[3])
        fault = feed_in_pieces(client, stream, size)
        seen.append(
            (
                fault,
                [call.outcomes for call in calls],
                bytes(client.core.data_to_send()),
                list(client.core.streams),
                client.core._receive_window,
                client.core.answers,
            )
        )
    assert seen[0] == seen[1]
    assert [call.outcomes for call in calls[:10]] == [
        [] if number == 7 else [b"%02d" % number] for number in range(1, 21, 2)
    ]


def test_stream_numbers_run_out() -> None:
    client = Client()
    client.core.next_id = MAX_STREAM_ID
    first, second = client.call(), client.call()
    client.core.data_to_send()
    assert first.id == MAX_STREAM_ID
    assert second.id == 0
    assert second in client.waiting[1]
    assert not client.core.accepting


def test_a_call_that_comes_too_late_is_not_sent() -> None:
    client = Client()
    call = client.call()
    call.header_block = lambda now: None  # type: ignore[method-assign,assignment,return-value]
    assert not client.core.data_to_send()
    assert not client.waiting[1]


def test_an_abandoned_call_is_reset_once_and_wakes_the_writer() -> None:
    client = Client()
    call = client.call(b"x" * 100_000)
    client.core.data_to_send()
    client.core.abandon(call)
    client.core.abandon(call)
    assert client.woken == 1
    assert client.core.data_to_send() == rst_stream(1, Code.CANCEL)
    client.core.feed(window_update(0, 1 << 20))
    lost = client.call()
    client.core.data_to_send()
    assert client.core.lost() == [lost]
    client.core.abandon(lost)
    assert client.woken == 1


@pytest.mark.parametrize("window", [1, 4, 5, 6, 1000])
def test_a_message_and_its_prefix_may_be_cut_anywhere(window: int) -> None:
    client = Client(values={4: window})
    payload = bytes(range(256)) * 10
    client.call(payload)
    sent, body = b"", b""
    while client.core.has_output():
        sent += client.core.data_to_send()
        client.core.feed(window_update(1, window))
    while sent:
        stop = 9 + int.from_bytes(sent[:3])
        body += sent[9:stop] if sent[3] == 0 else b""
        sent = sent[stop:]
    assert body == message(payload)


def test_long_and_short_calls_take_turns() -> None:
    client = Client(values={4: 1 << 24})
    client.core.feed(window_update(0, 1 << 24))
    long = client.call(b"x" * 1_000_000)
    assert len(client.core.data_to_send()) >= WRITE_SIZE
    shorts = [client.call(b"y") for _ in range(1000)]
    client.core.data_to_send()
    # At least one frame of the long one beside each short one.
    assert 0 < sum(short.id > 0 for short in shorts) <= 4
    assert long.offset > WRITE_SIZE


def test_two_long_calls_take_turns() -> None:
    client = Client(values={4: 1 << 24})
    client.core.feed(window_update(0, 1 << 24))
    first, second = client.call(b"x" * 1_000_000), client.call(b"y" * 1_000_000)
    for _ in range(5):
        client.core.data_to_send()
    assert abs(first.offset - second.offset) <= 2 * 16384


def test_a_window_of_the_connection_holds_new_calls_back() -> None:
    client = Client(values={4: 1 << 24})
    client.call(b"x" * 65_530)
    while client.core.has_output():
        client.core.data_to_send()
    client.call(b"y")
    assert not client.core.has_output()
    client.core.feed(window_update(0, 3))
    while client.core.has_output():
        client.core.data_to_send()
    client.core.feed(window_update(0, 100))
    assert client.core.has_output()


def test_a_servers_first_frame_must_be_settings() -> None:
    core = ClientConnection(Http2Config(), (OrderedDict(), OrderedDict()), lambda: None)
    with pytest.raises(ConnectionFault, match="first frame"):
        core.feed(frame(6, 0, 0, b"12345678"))


def test_many_small_reads_are_the_same_as_one() -> None:
    world = ClientWorld()
    world.call(100_000, False)
    while world.core.has_output() or not world.core.settings_received:
        world.move_up(7777)
        for _ in range(50):
            world.move_down(1)
    world.settle()
    assert world.calls[0].outcomes


def test_codes_are_named_if_they_are_known() -> None:
    assert code_name(11) == "ENHANCE_YOUR_CALM"
    assert code_name(99) == "99"
    assert str(StreamFault(Code.CANCEL, "x")) == "CANCEL: x"


class Server:
    """A server core that has been greeted."""

    def __init__(self, config: Http2Config | None = None) -> None:
        self.requests: list[ServerStream] = []
        self.core = ServerConnection(
            config or Http2Config(), self.requests.append, lambda stream: None
        )
        self.core.feed(PREFACE + settings({}))
        self.core.data_to_send()

    def request(self, number: int, payload: bytes = b"") -> None:
        self.core.feed(request_frames(number, payload))


def request_frames(number: int, payload: bytes = b"") -> bytes:
    head = frame(1, 4, number, b"\x20" + REQUEST_BLOCK)
    return head + frame(0, 1, number, prefixed(payload))


def test_a_call_reset_in_the_read_that_brought_it_is_never_offered() -> None:
    server = Server()
    server.core.feed(request_frames(1) + rst_stream(1, 8) + request_frames(3))
    assert [stream.id for stream in server.requests] == [3]


def test_a_queued_answer_of_a_reset_call_is_told() -> None:
    server = Server()
    server.request(1)
    [stream] = server.requests
    told: list[str] = []
    stream.on_reset = lambda: told.append("reset")
    stream.on_written = lambda: told.append("written")
    server.core.respond(stream, HEAD_BLOCK, b"reply", TRAILER_BLOCK)
    server.core.feed(rst_stream(1, 8))
    assert told == ["reset"]
    assert not server.core.has_output()
    server.core.written()
    assert told == ["reset"]


def test_an_answer_counts_as_written_only_when_it_is() -> None:
    server = Server()
    server.request(1)
    [stream] = server.requests
    told: list[str] = []
    stream.on_written = lambda: told.append("written")
    server.core.respond(stream, HEAD_BLOCK, b"reply", TRAILER_BLOCK)
    server.core.written()
    assert told == []
    server.core.data_to_send()
    assert told == []
    assert server.core.streams == {}
    server.core.written()
    assert told == ["written"]


def test_what_was_taken_but_not_written_is_lost_with_the_connection() -> None:
    server = Server()
    for number in (1, 3, 5):
        server.request(number)
    first, second, _ = server.requests
    server.core.respond(first, HEAD_BLOCK, b"", TRAILER_BLOCK)
    server.core.data_to_send()
    server.core.respond(second, HEAD_BLOCK, b"", TRAILER_BLOCK)
    lost = server.core.lost()
    assert [stream.id for stream in lost] == [3, 5, 1]
    assert [stream.local_ended for stream in lost] == [False, False, True]


def test_a_call_may_be_reset_and_still_take_an_answer_under_way() -> None:
    client = Client()
    call, other = client.call(), client.call(b"x" * 100_000)
    client.core.data_to_send()
    client.core.reset(call)
    client.core.reset(call)
    assert client.core.data_to_send()[-13:] == rst_stream(1, Code.CANCEL)
    client.core.feed(headers(1, HEADS) + data(1, message(b"late")))
    client.core.feed(headers(1, [("grpc-status", "0")], 1))
    assert call.outcomes == [b"late"]
    # One whose request is still leaving cannot have been answered.
    client.core.reset(other)
    assert not client.core.streams
    third = client.call()
    client.core.feed(window_update(0, 1 << 20))
    client.core.data_to_send()
    client.core.reset(third)
    client.core.abandon(third)
    sent = bytes(client.core.data_to_send())
    assert sent.count(rst_stream(third.id, Code.CANCEL)) == 1
