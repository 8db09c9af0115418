"""Messages in many frames: put together in any pieces, at a bounded cost."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from sepp_trio.transport._body import Body
from sepp_trio.transport._client_role import ClientConnection
from sepp_trio.transport._frames import Code, rst_stream, window_update
from sepp_trio.transport._http2 import Http2Config

from .h2_oracle import HEAD_BLOCK, TRAILER_BLOCK
from .peer import DATA, HEADERS, frame, message
from .test_core import Answered, Client, Server, request_frames

PADDED = 0x8
HEADS = frame(HEADERS, 4, 1, HEAD_BLOCK)
TRAILERS = frame(HEADERS, 5, 1, TRAILER_BLOCK)
LARGEST = ClientConnection.max_frame


def answered(client: Client) -> Answered:
    """A call that has left."""
    call = Answered(b"", False)
    client.waiting[1][call] = None
    client.core.data_to_send()
    return call


@given(st.lists(st.binary(min_size=1, max_size=9), min_size=1), st.integers(1, 3000))
def test_a_body_is_its_pieces(pieces: list[bytes], times: int) -> None:
    body = Body(pieces[0])
    for piece in pieces[1:]:
        body.append(piece * times)
    whole = pieces[0] + b"".join(piece * times for piece in pieces[1:])
    assert len(body) == len(whole)
    assert body.flag == whole[0]
    assert body.head() == whole[:5]
    assert body.message() == whole[5:]


def test_single_bytes_do_not_cost_an_object_each() -> None:
    body = Body(message(bytes(10_000))[:5])
    for _ in range(10_000):
        body.append(b"x")
    assert len(body._parts) == 2
    assert sum(sys.getsizeof(part) for part in body._parts) < 15_000


def data(number: int, payload: bytes, size: int = LARGEST, padding: bytes = b"") -> bytes:
    """DATA frames of this size."""
    frames = []
    for at in range(0, len(payload), size):
        part = payload[at : at + size]
        if padding:
            part = bytes([len(padding)]) + part + padding
        frames.append(frame(DATA, PADDED if padding else 0, number, part))
    return b"".join(frames)


@given(
    st.lists(st.integers(1, 200_000), max_size=20),
    st.sampled_from([5000, 16_384, 100_000, LARGEST - 4]),
    st.sampled_from([b"", b"pad"]),
)
def test_a_large_answer_may_be_cut_anywhere(cuts: list[int], size: int, padding: bytes) -> None:
    client = Client()
    call = answered(client)
    payload = bytes(range(256)) * 1100
    stream = HEADS + data(1, message(payload), size, padding) + TRAILERS
    at = 0
    for cut in [*cuts, len(stream)]:
        client.core.feed(stream[at : at + cut])
        at += cut
    assert call.outcomes == [payload]
    assert not client.core.data_to_send()


@given(st.integers(1, 60_000))
def test_the_last_frame_may_end_the_answer(cut: int) -> None:
    """No gRPC, but it is to be told of when the frame is whole, and not before."""
    client = Client()
    call = answered(client)
    stream = HEADS + frame(DATA, 1, 1, message(bytes(59_000)))
    client.core.feed(stream[:cut])
    assert bool(call.outcomes) == (cut >= len(stream))
    client.core.feed(stream[cut:])
    assert call.outcomes == ["INTERNAL: the answer ended without a grpc-status"]
    assert not client.core.streams


def test_a_call_may_be_given_up_in_the_middle_of_a_frame() -> None:
    client = Client(Http2Config(connection_window=65_535))
    calls = [answered(client), answered(client)]
    large = data(1, message(bytes(40_000)))
    client.core.feed(HEADS + large[:10_000])
    # Credit for the connection is given for all of the frame, as it is on its way.
    assert client.core.data_to_send() == window_update(0, len(large) - 9)
    client.core.abandon(calls[0])
    assert client.core.data_to_send() == rst_stream(1, Code.CANCEL)
    client.core.feed(large[10_000:20_000])
    client.core.feed(large[20_000:] + frame(HEADERS, 4, 3, HEAD_BLOCK))
    client.core.feed(data(3, message(b"x")) + frame(HEADERS, 5, 3, TRAILER_BLOCK))
    assert [call.outcomes for call in calls] == [[], [b"x"]]
    assert not client.core.data_to_send()


def test_a_frame_beyond_the_window_is_refused_at_its_beginning() -> None:
    client = Client(Http2Config(stream_window=20_000))
    call = answered(client)
    large = data(1, message(bytes(30_000)))
    client.core.feed(HEADS + large[:5000])
    assert call.outcomes == [Code.FLOW_CONTROL_ERROR]
    client.core.feed(large[5000:])
    assert client.core.data_to_send() == rst_stream(1, Code.FLOW_CONTROL_ERROR)


def test_a_small_part_of_a_read_does_not_keep_all_of_it() -> None:
    client = Client()
    calls = [answered(client), answered(client)]
    first = frame(HEADERS, 4, 3, HEAD_BLOCK) + data(3, message(bytes(9000))[:8000])
    client.core.feed(HEADS + data(1, message(bytes(99_000))[:90_000]) + first)
    assert isinstance(calls[0].body, Body)
    assert isinstance(calls[1].body, bytes)


def test_a_request_may_be_cut_in_the_middle_of_its_frames() -> None:
    server = Server()
    payload = bytes(range(256)) * 50
    whole = request_frames(1, payload) + request_frames(3, payload)
    for at in range(0, len(whole), 7000):
        server.core.feed(whole[at : at + 7000])
    assert [stream.payload for stream in server.requests] == [payload, payload]
    assert server.core.buffered == 0


def test_a_request_may_be_refused_in_the_middle_of_its_frame() -> None:
    server = Server(Http2Config(max_buffered=8000))
    head = request_frames(1)[: -(9 + 5)]
    large = frame(DATA, 0, 1, message(bytes(12_000)))
    server.core.feed(head + large[:7000])
    assert not server.core.data_to_send()
    server.core.feed(large[7000:9000])
    assert server.core.data_to_send() == rst_stream(1, Code.REFUSED_STREAM)
    server.core.feed(large[9000:] + request_frames(3, b"x"))
    assert [stream.payload for stream in server.requests] == [b"x"]
    assert server.core.buffered == 0
