"""Messages in many frames: put together in any pieces, at a bounded cost."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from sepp_trio.transport._body import Body

from .h2_oracle import HEAD_BLOCK, TRAILER_BLOCK
from .peer import data, frame, message
from .test_core import Answered, Client


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


@given(st.lists(st.integers(1, 200_000), min_size=1, max_size=20))
def test_a_large_answer_may_be_cut_anywhere(cuts: list[int]) -> None:
    client = Client()
    call = Answered(b"", False)
    client.waiting[1][call] = None
    client.core.data_to_send()
    payload = bytes(range(256)) * 1000
    stream = frame(1, 4, 1, HEAD_BLOCK) + data(1, message(payload)) + frame(1, 5, 1, TRAILER_BLOCK)
    at = 0
    for cut in [*cuts, len(stream)]:
        client.core.feed(stream[at : at + cut])
        at += cut
    assert call.outcomes == [payload]
