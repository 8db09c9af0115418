"""How a worker reads the jobs of an answer and writes their acks, many of a kind."""

from __future__ import annotations

from typing import Any

import pytest

from sepp_trio.client._methods import methods
from sepp_trio.wire import convert, encode, records
from sepp_trio.worker._acks import AckMessages
from sepp_trio.worker._receive import JobReader

GOOD: dict[str, Any] = {
    "id": "a",
    "job_type": "t",
    "payload": records.Payload(b"data", "json"),
    "priority": 9,
    "enqueued_at": (1_700_000_000, 5_000_000),
    "attempt": 1,
    "max_attempts": 3,
    "lease_expires_at": (1_700_000_030, 5_000_000),
    "queue": "q",
}


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"id": ""}, "id is empty"),
        ({"job_type": ""}, "job_type is empty"),
        ({"attempt": 0}, "attempt is 0"),
        ({"priority": 10}, "priority is 10"),
        ({"payload": records.Payload(b"", "json")}, "payload"),
        ({"payload": records.Payload(b"data", "")}, "payload"),
        ({"enqueued_at": None}, "enqueued_at is not set"),
        ({"enqueued_at": (-1, 0)}, "enqueued_at is before 1970"),
        ({"lease_expires_at": None}, "lease_expires_at is not set"),
        ({"lease_expires_at": (-1, 0)}, "lease_expires_at is before 1970"),
        ({"enqueued_at": None, "lease_expires_at": None}, "is not set"),
        ({"custom": b"\x52\x03\x0a\x01k"}, "custom"),
    ],
)
def test_each_job_of_an_answer_is_judged_whatever_came_before(
    wrong: dict[str, Any], why: str
) -> None:
    good, bad = encode(records.Job(**GOOD)), encode(records.Job(**GOOD | wrong))
    reader = JobReader()
    for raw in (bad, bad, good, bad, good, good, bad):
        read = reader.read(raw)
        if raw is good:
            assert read == records.Job(**GOOD)
        else:
            assert isinstance(read, convert.MalformedJob)
            assert why in read.reason


@pytest.mark.parametrize("worker_id", [None, "", "w", "\n\x01a", "wörker"])
def test_acks_are_written_as_the_codec_writes_them(worker_id: str | None) -> None:
    acks = AckMessages(methods().ack, worker_id)
    for job_id in ("a", "b", "w", "\n", "\n\x01", "é", "x" * 127, "x" * 128, "y" * 300, "a"):
        for attempt in (1, 2, 127, 128, 2**32 - 1, 1):
            message = acks.encode(job_id, attempt)
            assert message == encode(records.AckRequest(job_id, attempt, worker_id))
            assert acks.method.encode(message) == message


def test_what_is_remembered_for_acks_is_bounded() -> None:
    acks = AckMessages(methods().ack, "w")
    for attempt in range(1, 2000):
        assert acks.encode("id", attempt) == encode(records.AckRequest("id", attempt, "w"))
    assert len(acks._known) <= 256
