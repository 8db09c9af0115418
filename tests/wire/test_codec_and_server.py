"""The real server and our decoders refuse the same requests as undecodable."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from sepp_trio.wire import DecodeError, decode, rpcs
from sepp_trio.wire._primitives import MAX_GROUPS, varint
from tests.conformance.frames import Wire, message
from tests.conformance.servers import HOW_TO_GET_IT, REAL, Server, real_binary
from tests.conformance.wire import NOBODY, batch, new_job, pb, request_class, reserve_request, route

pytestmark = [
    pytest.mark.real_server,
    pytest.mark.skipif(real_binary() is None, reason=HOW_TO_GET_IT),
]

INTERNAL = "13"  # of an idle server: the request could not be read
# The one thing that the real server is not followed in: it reads the entry of a map, with its
# length, behind a tag of any wire type.
MAP_AS_OTHER_TYPE = "EnqueueRequest.custom: a field of wire type"

Case = tuple[str, bytes]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = Server(REAL, "").start()
    try:
        yield server.address
    finally:
        server.close()


def assert_judged_alike(address: str, cases: list[Case]) -> dict[bool, int]:
    """How many both took and how many both refused."""
    counts = {True: 0, False: 0}
    # A connection takes only so many answers: it gives no credit back.
    for begin in range(0, len(cases), 100):
        some = cases[begin : begin + 100]
        with Wire(address) as wire:
            # The deadline ends a Reserve that waits.
            streams = [
                wire.start(route(rpc), message(raw), grpc_timeout="500m") for rpc, raw in some
            ]
            for stream, (rpc, raw) in zip(streams, some, strict=True):
                real = wire.answer(stream, 20).status != INTERNAL
                refusal = our_refusal(rpc, raw)
                if MAP_AS_OTHER_TYPE in refusal:
                    continue
                assert real == (not refusal), f"{rpc} {raw.hex()}: {refusal or 'taken'}"
                counts[real] += 1
    return counts


def our_refusal(rpc: str, raw: bytes) -> str:
    """What our decoder says against a request; empty if it takes it."""
    try:
        decode(rpcs()[rpc].request, raw)
    except DecodeError as error:
        return str(error)
    return ""


# ---- The rules one by one ----

ID, ATTEMPT, UNKNOWN, GROUP, END = b"\x0a", b"\x10", b"\x78", b"\x7b", b"\x7c"


def held(tag: int, content: bytes) -> bytes:
    return varint(tag) + varint(len(content)) + content


def custom(entry: bytes) -> bytes:
    return held(0x0A, b"\x0a\x01q\x12\x01t" + held(0x42, entry))


KEY, VALUE = b"\x0a\x01k", b"\x12\x02\x18\x01"
NESTED = GROUP * MAX_GROUPS + END * MAX_GROUPS
ACKS = {
    "a string as a varint": b"\x08\x05",
    "a number as bytes": b"\x12\x01a",
    "a known field as a group": b"\x0b\x0c",
    "a known field in an unknown group": GROUP + ID + b"\x01a\x08\x01" + END,
    "a known field of no wire type": b"\x0e\x00",
    "an unknown field of no wire type": b"\x7f\x00",
    "fixed sizes": b"\x79" + bytes(8) + b"\x7d" + bytes(4),
    "a fixed size cut short": b"\x79\x00",
    "a tenth byte of 1": ATTEMPT + b"\xff" * 9 + b"\x01",
    "a tenth byte of 2": ATTEMPT + b"\xff" * 9 + b"\x02",
    "a tenth byte of 2, unknown": UNKNOWN + b"\xff" * 9 + b"\x02",
    "eleven bytes": ATTEMPT + b"\xff" * 10 + b"\x01",
    "a tag of six bytes": b"\x8a\x80\x80\x80\x80\x00\x01a",
    "a tag of ten bytes": b"\x8a" + b"\x80" * 8 + b"\x00\x01a",
    "a tag of eleven bytes": b"\x8a" + b"\x80" * 9 + b"\x00\x01a",
    "a tag of 33 bits": b"\x8a\x80\x80\x80\x10\x01a",
    "the largest number": b"\xf8\xff\xff\xff\x0f\x01",
    "a length of ten bytes": ID + b"\x81" + b"\x80" * 8 + b"\x00a",
    "a length of 2**31": ID + varint(2**31) + b"a",
    "a length of 2**32": ID + varint(2**32) + b"a",
    "an unknown length of 2**64 - 1": b"\x7a" + varint(2**64 - 1) + b"a",
    "number 0": b"\x00\x01",
    "number 0 in a group": GROUP + b"\x00\x01" + END,
    "a group of number 0 in a group": GROUP + b"\x03\x04" + END,
    "an end without its group": END,
    "an end of another group": GROUP + b"\x74",
    "a group that does not end": GROUP + UNKNOWN + b"\x01",
    "groups in groups": NESTED,
    "too many groups in groups": GROUP * 101 + END * 101,
    "a surrogate": ID + b"\x03\xed\xa0\x80",
    "bad text that is overwritten": ID + b"\x01\xff" + ID + b"\x01a",
    "bad text, unknown": b"\x7a\x01\xff",
    "33 bits": ATTEMPT + varint(2**32 + 1),
}
ENTRIES = {
    "an unknown field": KEY + VALUE + b"\x18\x05",
    "an unknown group": b"\x1b\x1c" + KEY + VALUE,
    "a key as a varint": b"\x08\x05" + VALUE,
    "a value as a varint": KEY + b"\x10\x05",
    "number 0": KEY + VALUE + b"\x02\x00",
    "nothing": b"",
    "a double as a varint": KEY + b"\x12\x02\x10\x01",
    "a bool of two bytes": KEY + b"\x12\x03\x20\x80\x02",
    "groups in groups": KEY + held(0x12, NESTED),
    "bad text": held(0x0A, b"\xff") + VALUE,
}
OTHERS = {
    "no fields, unknown field": ("GetServerInfo", b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
    "no fields, tenth byte": ("GetServerInfo", b"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02"),
    "no fields, number 0": ("GetServerInfo", b"\x00\x01"),
    "a tenth byte in a duration": ("Extend", held(0x1A, b"\x08" + b"\xff" * 9 + b"\x6e")),
    "a fixed size in a duration": ("Extend", held(0x1A, b"\x09" + bytes(8))),
    "nanos of 40 bits": ("Extend", held(0x1A, b"\x10" + varint(2**40))),
    "an empty message with a field": ("Nack", held(0x22, held(0x0A, b"\x08\x01"))),
    "an empty message that is cut short": ("Nack", held(0x22, held(0x0A, b"\x08"))),
    "an empty message with number 0": ("Nack", held(0x22, held(0x0A, b"\x00\x01"))),
    "a string as a message": ("DrainDeadLetters", b"\x0a\x02zz\x10\x43\x12\x00"),
}
RULES: dict[str, Case] = {
    **{f"Ack: {name}": ("Ack", raw) for name, raw in ACKS.items()},
    **{f"entry: {name}": ("EnqueueBatch", custom(raw)) for name, raw in ENTRIES.items()},
    **OTHERS,
}


def test_each_rule_is_the_real_servers(address: str) -> None:
    counts = assert_judged_alike(address, list(RULES.values()))
    assert min(counts.values()) > 15


# ---- Any bytes ----


def valid_requests() -> list[tuple[str, Any]]:
    job = new_job("q", "t", priority=3, max_attempts=2, idempotency_key="key")
    job.payload.data, job.payload.encoding = b"\x00\x01data", "raw"
    job.trace_context.traceparent, job.trace_context.tracestate = "parent", "state"
    job.scheduled_at.seconds, job.scheduled_at.nanos = 2**40, 999_999_999
    job.custom["text"].string_value = "value"
    job.custom["float"].double_value = 0.5
    job.custom["int"].int_value = -1
    job.custom["bool"].bool_value = True
    nack = pb.NackRequest(job_id=NOBODY, attempt=1, reason="reason", worker_id="w")
    nack.retry.delay.seconds = 5
    dead = pb.NackRequest(job_id=NOBODY, attempt=300)
    dead.retry.dead_letter.SetInParent()
    extend = pb.ExtendRequest(job_id=NOBODY, attempt=1, worker_id="w")
    extend.lease_duration.seconds = 2**40
    return [
        ("EnqueueBatch", batch(job, new_job("other"))),
        ("EnqueueAtomic", batch(job)),
        ("Reserve", reserve_request("one", "two", wait=0.001, worker_id="w", max_jobs=4)),
        ("Ack", pb.AckRequest(job_id=NOBODY, attempt=1, worker_id="w")),
        ("Nack", nack),
        ("Nack", dead),
        ("Extend", extend),
        ("DrainDeadLetters", pb.DrainDeadLettersRequest(queue="q", max=3)),
        ("GetServerInfo", pb.GetServerInfoRequest()),
    ]


INSERTED = [
    b"",
    b"\x00",
    b"\xff" * 9 + b"\x01",
    b"\xff" * 9 + b"\x02",
    b"\x80" * 4 + b"\x00",
    b"\x80" * 8 + b"\x00",
    b"\x7b\x7c",
    b"\x7b",
    b"\x7c",
    b"\x78\x01",
    b"\x7a\x01a",
    varint(2**31),
    varint(2**32),
]


def mutated(raw: bytes, dice: random.Random) -> bytes:
    """`raw` with one or two pieces replaced, a bit changed, or the order of two pieces."""
    for _ in range(dice.choice((1, 1, 2))):
        start, stop = sorted(dice.choices(range(len(raw) + 1), k=2))
        stop = min(stop, start + dice.choice((0, 1, 2, 8)))
        kind = dice.randrange(4)
        if kind == 0:
            raw = raw[:start] + dice.choice(INSERTED) + raw[stop:]
        elif kind == 1:
            raw = raw[:start] + dice.randbytes(dice.randrange(4)) + raw[stop:]
        elif kind == 2:
            raw = raw[start:] + raw[:start]
        elif start < len(raw):
            changed = raw[start] ^ 1 << dice.randrange(8)
            raw = raw[:start] + bytes([changed]) + raw[start + 1 :]
    return raw


def test_mutated_requests_are_judged_alike(address: str) -> None:
    dice = random.Random(20)
    cases = []
    for rpc, request in valid_requests() * 60:
        assert isinstance(request, request_class(rpc))
        cases.append((rpc, mutated(request.SerializeToString(deterministic=True), dice)))
    counts = assert_judged_alike(address, cases)
    assert min(counts.values()) > 100
