"""Every message: our codec and google.protobuf accept the same bytes and read the same in them."""

from __future__ import annotations

import contextlib
import itertools
import re
from typing import Any

import pytest
from google.protobuf.message import DecodeError as JudgeError
from hypothesis import given, settings
from hypothesis import strategies as st

from sepp_trio.wire import DecodeError, decode, encode
from sepp_trio.wire._primitives import varint
from sepp_trio.wire.generated.sepp import v1 as messages
from tests.wire.oracle import (
    NAMES,
    dropped_an_entry,
    judge_class,
    meaning_of_message,
    meaning_of_record,
    message_of,
    record_class,
    record_of,
    values_of,
)

# One property for all messages together would hardly reach the rare ones.
each_message = pytest.mark.parametrize("name", NAMES)


@each_message
@settings(max_examples=20)
@given(st.data())
def test_valid_messages_are_read_and_written_alike(name: str, data: st.DataObject) -> None:
    values = data.draw(values_of(name))
    record, message = record_of(name, values), message_of(name, values)
    expected = meaning_of_message(message)
    by_judge, by_us = message.SerializeToString(), encode(record)
    judged = judge_class(name).FromString(by_us)

    assert meaning_of_message(judged) == expected
    assert meaning_of_record(decode(record_class(name), by_judge)) == expected
    assert meaning_of_record(decode(record_class(name), by_us)) == expected
    # The order in a map is free, but nothing superfluous is written.
    assert len(by_us) == len(by_judge)


@each_message
@settings(max_examples=10)
@given(st.data())
def test_betterproto_reads_what_we_write(name: str, data: st.DataObject) -> None:
    values = data.draw(values_of(name, plain_times=True))
    by_us = encode(record_of(name, values))
    by_betterproto = bytes(getattr(messages, name).parse(by_us))
    assert_same(name, by_betterproto, by_us)


def assert_same(name: str, one: bytes, other: bytes) -> None:
    judge = judge_class(name)
    assert meaning_of_message(judge.FromString(one)) == meaning_of_message(judge.FromString(other))
    assert len(one) == len(other)


@each_message
@settings(max_examples=settings.default.max_examples // 4)  # of each of forty messages
@given(st.data())
def test_any_bytes_are_judged_alike(name: str, data: st.DataObject) -> None:
    raw = message_of(name, data.draw(values_of(name))).SerializeToString()
    other = message_of(name, data.draw(values_of(name))).SerializeToString()
    assert_judged_alike(name, data.draw(mutated(raw) | FIELDS | st.just(raw + other)))


@settings(max_examples=100)
@given(st.data())
def test_jobs_that_share_their_ends_are_judged_alike(data: st.DataObject) -> None:
    jobs = [message_of("Job", data.draw(values_of("Job"))) for _ in range(2)]
    wholes = [job.SerializeToString() for job in jobs]
    for job in jobs:
        for field in ("id", "job_type", "payload"):
            job.ClearField(field)
    ends = [job.SerializeToString() for job in jobs] + wholes
    heads = [whole.removesuffix(end) for whole, end in zip(wholes, ends, strict=False)]
    ends.append(data.draw(mutated(ends[0])))
    # What the first with an end leaves behind is met by those that follow.
    for head, end in data.draw(st.permutations(list(itertools.product(heads + ends, ends * 2)))):
        assert_judged_alike("Job", head + end)


# Where we judge otherwise, as the real server does or by a limit of our own: see _compile.py.
REFUSED_BEYOND = ("wire type", "more than 64 bits", "number 0", "groups nested")
# Five bytes that say that the number goes on: so begin the tags and lengths that the judge refuses.
LONG = re.compile(rb"[\x80-\xff]{5}")


def assert_judged_alike(name: str, raw: bytes) -> None:
    """Both refuse `raw`, or both read the same in it, apart from where we judge otherwise."""
    message, refused = None, ""
    with contextlib.suppress(JudgeError):
        message = judge_class(name).FromString(raw)
    try:
        read: Any = meaning_of_record(decode(record_class(name), raw))
    except DecodeError as error:
        refused = str(error)
    if refused:
        assert message is None or any(reason in refused for reason in REFUSED_BEYOND)
    elif message is None:
        assert LONG.search(raw)
    elif not dropped_an_entry(message):
        assert read == meaning_of_message(message)


def mutated(raw: bytes) -> st.SearchStrategy[bytes]:
    """`raw` with a piece cut out, put in twice, or replaced by other bytes."""
    where = st.integers(0, len(raw))

    def mutate(one: int, other: int, new: bytes, twice: bool) -> bytes:
        start, stop = sorted((one, other))
        return raw[:stop] * twice + raw[:start] + new + raw[stop:]

    return st.builds(mutate, where, where, INSERTED, st.booleans())


INSERTED = st.binary(max_size=3) | st.sampled_from(
    [varint(2**64 - 1), varint(2**35), b"\xff" * 10, b"\xff" * 9 + b"\x7f"]
)


def wire_values(depth: int = 2) -> st.SearchStrategy[bytes]:
    """Fields that need not belong to any message: tags near the known ones, any wire type."""
    numbers = st.integers(0, 22)
    anything = st.binary(max_size=4)
    if depth:
        anything |= wire_values(depth - 1)
    varints = st.integers(0, 2**64 - 1).map(varint)

    def field(wire_type: int, content: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
        return st.builds(lambda number, c: varint(number << 3 | wire_type) + c, numbers, content)

    group = st.builds(
        lambda number, c: varint(number << 3 | 3) + c + varint(number << 3 | 4), numbers, anything
    )
    return st.lists(
        st.one_of(
            field(0, varints),
            field(2, anything.map(lambda content: varint(len(content)) + content)),
            field(1, st.binary(min_size=8, max_size=8)),
            field(5, st.binary(min_size=4, max_size=4)),
            field(4, st.just(b"")),
            field(6, st.just(b"")),
            group,
        ),
        max_size=5,
    ).map(b"".join)


FIELDS = wire_values()
