"""Header blocks: what we encode is HPACK, what we remember is safe to remember."""

from __future__ import annotations

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sepp_trio.transport._frames import Code, ConnectionFault, header_frames
from sepp_trio.transport._headers import TABLE_OFF, BlockDecoder, Fields, encode_block
from sepp_trio.transport._method import RequestBlocks

ascii_text = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=300)
fields_strategy = st.lists(st.tuples(ascii_text.filter(bool), ascii_text), max_size=8)


def decoder(remember: int = 128) -> BlockDecoder[list[tuple[str, str]]]:
    def parse(fields: Fields) -> list[tuple[str, str]]:
        return [(name.decode(), value.decode()) for name, value in fields]

    return BlockDecoder(parse, remember=remember)


@given(st.lists(fields_strategy, max_size=4))
def test_joined_blocks_are_the_block_of_all_fields(groups: list[list[tuple[str, str]]]) -> None:
    block = TABLE_OFF + b"".join(encode_block(group) for group in groups)
    fields = [field for group in groups for field in group]
    got = hpack.Decoder(max_header_list_size=1 << 20).decode(block)
    assert [tuple(field) for field in got] == fields
    assert all(type(field) is hpack.NeverIndexedHeaderTuple for field in got)


def test_a_long_value_is_encoded_whole() -> None:
    fields = [("x", "y" * size) for size in (126, 127, 128, 254, 255, 20_000)]
    assert [tuple(f) for f in hpack.Decoder().decode(encode_block(fields))] == fields


@given(
    st.lists(st.one_of(fields_strategy, st.sampled_from([0, 100, 4096])), max_size=30),
    st.integers(1, 4),
)
def test_remembering_changes_nothing(steps: list[object], remember: int) -> None:
    """A peer may use its table, and change its size, as it likes."""
    encoder, ours = hpack.Encoder(), decoder(remember)
    for step in steps:
        if isinstance(step, int):
            # hpack forgets a change that is followed by the same size again.
            if step != encoder.header_table_size:
                encoder.header_table_size = step
        else:
            for _ in range(2):
                block = encoder.encode(step)
                assert ours.decode(block) == step


def test_equal_blocks_are_decoded_once() -> None:
    ours = decoder()
    block = encode_block([("a", "b")])
    first = ours.decode(TABLE_OFF + block)
    assert ours.decode(TABLE_OFF + block) is not first
    second = ours.decode(block)
    assert ours.decode(block) is second
    assert ours.table_is_off
    for number in range(200):
        ours.decode(encode_block([("a", str(number))]))
    assert ours.decode(block) == second
    assert ours.decode(block) is not second


def test_a_block_that_is_no_hpack_is_a_fault() -> None:
    with pytest.raises(ConnectionFault) as caught:
        decoder().decode(b"\xc0")
    assert caught.value.code is Code.COMPRESSION_ERROR
    strict = decoder()
    strict.table_size_acknowledged(0)
    with pytest.raises(ConnectionFault, match="shrink"):
        strict.decode(b"\x88")


def test_a_large_block_is_cut_into_frames() -> None:
    block = bytes(range(256)) * 150
    frames, at, parts = header_frames(7, block, 1), 0, []
    while at < len(frames):
        size = int.from_bytes(frames[at : at + 3])
        parts.append((frames[at + 3], frames[at + 4], size))
        assert frames[at + 5 : at + 9] == b"\0\0\0\x07"
        at += 9 + size
    assert parts == [(1, 1, 16384), (9, 0, 16384), (9, 4, 38400 - 32768)]


def test_request_blocks_are_remembered_within_bounds() -> None:
    untimed = encode_block([("a", "b")])
    blocks = RequestBlocks(untimed)
    assert blocks[3000] is blocks[3000]
    for number in range(1, 2000):
        assert blocks[number] == untimed + encode_block([("grpc-timeout", f"{number}m")])
        assert len(blocks) <= 512
