"""What is wrong with an enqueued job, and which fault is told when there are several."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from sepp_trio.broker.config import BrokerConfig, QueueConfig
from sepp_trio.broker.validation import job_rejection
from sepp_trio.wire import records

from .helpers import DAY, START, config, job, ms

TEXT = records.PrimitiveValue(string_value="x")


def reason(config_: BrokerConfig, one: records.EnqueueRequest) -> tuple[str, Any] | None:
    """The name and the content of the rejection."""
    rejection = job_rejection(config_, one, START)
    if rejection is None:
        return None
    ((name, content),) = [
        (item.name, getattr(rejection, item.name))
        for item in fields(rejection)
        if getattr(rejection, item.name) is not None
    ]
    return name, content


def name_of(config_: BrokerConfig, one: records.EnqueueRequest) -> str | None:
    found = reason(config_, one)
    return None if found is None else found[0]


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"queue": ""}, "queue"),
        ({"queue": "."}, "queue"),
        ({"queue": ".."}, "queue"),
        ({"queue": "a/b"}, "queue"),
        ({"queue": "a\x00"}, "queue"),
        ({"queue": "a\x1f"}, "queue"),
        ({"queue": "a\x7f"}, "queue"),
        ({"queue": "a\x80"}, "queue"),
        ({"queue": "a\x9f"}, "queue"),
        ({"job_type": ""}, "job_type"),
        ({"payload": records.Payload(b"", "raw")}, "payload.data"),
        ({"payload": records.Payload(b"x", "")}, "payload.encoding"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"priority": 10}, "priority"),
        ({"priority": 2**32 - 1}, "priority"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"trace_context": records.TraceContext("", "state")}, "traceparent"),
        ({"custom": {"": TEXT}}, "custom"),
        ({"custom": {"k": records.PrimitiveValue()}}, "custom[k]"),
    ],
)
def test_a_broken_rule_is_named_by_its_field(values: dict[str, Any], field: str) -> None:
    found = reason(BrokerConfig(), replace(job(), **values))
    assert found is not None
    assert found[0] == "invalid_request"
    assert field in found[1].message


@pytest.mark.parametrize(
    "values",
    [
        {"queue": "..."},
        {"queue": "a b\u200b\xa0"},
        {"priority": 9},
        {"max_attempts": 2**32 - 1},
        {"scheduled_at": (-(2**63), -1)},
        {"scheduled_at": ms(START + 30 * DAY)},
        {"payload": records.Payload(b"x" * 2**20, "raw")},
        {"idempotency_key": "k" * 256},
        {"job_type": "t" * 256},
        {"queue": "q" * 512},
        {"trace_context": records.TraceContext("anything")},
        {"custom": {f"{i}": records.PrimitiveValue(bool_value=False) for i in range(64)}},
        {"custom": {"k" * 256: records.PrimitiveValue(string_value="")}},
        {"custom": {"k": records.PrimitiveValue(string_value="x" * (16384 - 1))}},
        {"custom": {"k" * 8: records.PrimitiveValue(int_value=0)}},
    ],
)
def test_what_is_on_the_limit_is_taken(values: dict[str, Any]) -> None:
    assert reason(BrokerConfig(), replace(job(), **values)) is None


@pytest.mark.parametrize(
    ("values", "name", "content"),
    [
        ({"queue": "é" * 257}, "queue_name_too_long", records.QueueNameTooLong(512, 514)),
        ({"job_type": "é" * 129}, "job_type_name_too_long", records.JobTypeNameTooLong(256, 258)),
        (
            {"idempotency_key": "k" * 257},
            "idempotency_key_too_long",
            records.IdempotencyKeyTooLong(256, 257),
        ),
        (
            {"payload": records.Payload(b"x" * (2**20 + 1), "raw")},
            "payload_too_large",
            records.PayloadTooLarge(2**20, 2**20 + 1),
        ),
        (
            {"custom": {f"{i:02}": TEXT for i in range(65)}},
            "custom_entries_too_many",
            records.CustomEntriesTooMany(64, 65),
        ),
        (
            {"custom": {"b" * 258: TEXT, "a" * 257: TEXT}},
            "custom_key_too_long",
            records.CustomKeyTooLong("a" * 257, 256, 257),
        ),
        (
            {"custom": {"k": records.PrimitiveValue(string_value="é" * 8192)}},
            "custom_map_too_large",
            records.CustomMapTooLarge(16384, 16385),
        ),
        (
            {"scheduled_at": (START // 1000 + 30 * 86400, 1_000_000)},
            "scheduled_too_far",
            records.ScheduledTooFar((30 * 86400, 0), (START // 1000 + 30 * 86400, 1_000_000)),
        ),
        (
            {"scheduled_at": (2**63 - 1, 2**31 - 1)},
            "scheduled_too_far",
            records.ScheduledTooFar((30 * 86400, 0), (2**63 - 1, 2**31 - 1)),
        ),
    ],
)
def test_one_more_than_the_limit_is_refused(
    values: dict[str, Any], name: str, content: object
) -> None:
    assert reason(BrokerConfig(), replace(job(), **values)) == (name, content)


def test_values_count_by_their_kind() -> None:
    limit = config(max_custom_total_bytes=21)
    values = {
        "s": records.PrimitiveValue(string_value=""),
        "d": records.PrimitiveValue(double_value=0.0),
        "i": records.PrimitiveValue(int_value=0),
        "b": records.PrimitiveValue(bool_value=False),
    }
    assert reason(limit, job(custom=values)) is None
    values["s"] = records.PrimitiveValue(string_value="x")
    content = records.CustomMapTooLarge(21, 22)
    assert reason(limit, job(custom=values)) == ("custom_map_too_large", content)


def test_a_queue_has_limits_of_its_own() -> None:
    own = QueueConfig(
        "own",
        max_payload_bytes=1,
        allowed_encodings=("a",),
        allowed_job_types=("t",),
        max_custom_entries=1,
        max_schedule_horizon_ms=1,
    )
    both = config(own, allowed_encodings=("b",))
    assert name_of(both, job("own", payload=records.Payload(b"x", "a"))) is None
    assert name_of(both, job("q", payload=records.Payload(b"xx", "b"))) is None
    assert reason(both, job("own", payload=records.Payload(b"xx", "a"))) == (
        "payload_too_large",
        records.PayloadTooLarge(1, 2),
    )
    assert reason(both, job("own", payload=records.Payload(b"x", "b"))) == (
        "encoding_not_allowed",
        records.EncodingNotAllowed("b", ["a"]),
    )
    assert reason(both, job("own", job_type="u")) == (
        "job_type_not_allowed",
        records.JobTypeNotAllowed("u", ["t"]),
    )
    assert name_of(both, job("own", scheduled_at=ms(START + 2))) == "scheduled_too_far"


def test_an_empty_allow_list_takes_jobs_without_a_payload_only() -> None:
    none = config(allowed_encodings=())
    assert name_of(none, job()) is None
    assert name_of(none, job(payload=records.Payload(b"x", "raw"))) == "encoding_not_allowed"


def test_a_strict_server_takes_declared_queues_only() -> None:
    strict = config(QueueConfig("known"), strict=True)
    assert name_of(strict, job("known")) is None
    content = records.UnknownQueue("new")
    assert reason(strict, job("new")) == ("unknown_queue", content)


def test_the_first_fault_in_order_is_told() -> None:
    """Everything is wrong at once, and repaired in the order of the contract."""
    tight = BrokerConfig(
        strict_queues=True,
        queues=(QueueConfig("q" * 8, allowed_job_types=("good",)),),
        limits=replace(
            BrokerConfig().limits,
            max_queue_name_bytes=8,
            max_job_type_bytes=4,
            max_idempotency_key_bytes=1,
            max_payload_bytes=1,
            allowed_encodings=("raw",),
            max_custom_entries=2,
            max_custom_key_bytes=2,
            max_custom_total_bytes=8,
            max_schedule_horizon_ms=1,
        ),
    )
    broken = records.EnqueueRequest(
        queue="/",
        job_type="",
        payload=records.Payload(b"", ""),
        idempotency_key="",
        priority=10,
        max_attempts=0,
        trace_context=records.TraceContext(),
        custom={"": TEXT, "k": records.PrimitiveValue()},
        scheduled_at=ms(START + 2),
    )
    long_key = {"kkk": TEXT, "a": TEXT, "b": TEXT}
    repairs: list[tuple[str, dict[str, Any]]] = [
        ("queue", {"queue": "undeclared"}),
        ("job_type", {"job_type": "too long"}),
        ("payload.data", {"payload": records.Payload(b"xx", "")}),
        ("payload.encoding", {"payload": records.Payload(b"xx", "odd")}),
        ("idempotency_key", {"idempotency_key": "kk"}),
        ("priority", {"priority": 9}),
        ("max_attempts", {"max_attempts": 1}),
        ("traceparent", {"trace_context": None}),
        ("custom must", {"custom": {"k": records.PrimitiveValue()} | long_key}),
        ("custom[k]", {"custom": long_key}),
        ("unknown_queue", {"queue": "q" * 8}),
        ("job_type_name_too_long", {"job_type": "evil"}),
        ("job_type_not_allowed", {"job_type": "good"}),
        ("idempotency_key_too_long", {"idempotency_key": "k"}),
        ("payload_too_large", {"payload": records.Payload(b"x", "odd")}),
        ("encoding_not_allowed", {"payload": records.Payload(b"x", "raw")}),
        ("custom_entries_too_many", {"custom": {"kkk": TEXT, "a": TEXT}}),
        (
            "custom_key_too_long",
            {"custom": {"k": records.PrimitiveValue(string_value="x" * 8)}},
        ),
        ("custom_map_too_large", {"custom": {}}),
        ("scheduled_too_far", {"scheduled_at": None}),
    ]
    for expected, repair in repairs:
        found = reason(tight, broken)
        assert found is not None
        name, content = found
        assert name == expected or (name == "invalid_request" and expected in content.message)
        broken = replace(broken, **repair)
    assert reason(tight, broken) is None


def test_an_undeclared_name_that_is_too_long_is_undeclared_first() -> None:
    strict = config(strict=True)
    assert name_of(strict, job("q" * 513)) == "unknown_queue"
