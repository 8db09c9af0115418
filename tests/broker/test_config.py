"""The configuration: defaults, the real server's file, and what is refused."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from sepp_trio.broker.config import (
    ApiKey,
    BrokerConfig,
    LimitsConfig,
    ListenConfig,
    QueueConfig,
    StorageConfig,
)
from sepp_trio.errors import ConfigError

FULL = """
[server]
listen_addr = "127.0.0.1:6000"
db_path = "./sepp-data"
strict_queues = true

[auth]
api_keys = [{ name = "workers", key = "k1" }, { name = "producers", key = "k2" }]

[limits]
max_lease_duration_ms = 1000
max_queue_depth = 0
allowed_encodings = ["json"]
retry_backoff = "exponential"
a_key_from_the_future = 1

[storage]
persist_mode = "buffer"
sweep_interval_ms = 500
cache_size_bytes = 1
dead_letter_retention_ms = 5

[admin]
enabled = false

[metrics]
enabled = false

[[queues]]
name = "emails"
max_lease_duration_ms = 60000
allowed_job_types = ["welcome"]
a_key_from_the_future = 1

[[queues]]
name = "reports"
allowed_encodings = []
max_queue_depth = 10
"""


def test_no_file_and_an_empty_one_mean_the_same(tmp_path: Path) -> None:
    path = tmp_path / "sepp.toml"
    path.write_text("")
    assert BrokerConfig.from_toml(path) == BrokerConfig()


def test_the_file_of_the_real_server_is_read(tmp_path: Path) -> None:
    path = tmp_path / "sepp.toml"
    path.write_text(FULL)
    config = BrokerConfig.from_toml(str(path))
    assert config == BrokerConfig(
        server=ListenConfig(listen_addr="127.0.0.1:6000"),
        strict_queues=True,
        api_keys=(ApiKey("workers", "k1"), ApiKey("producers", "k2")),
        limits=LimitsConfig(
            max_lease_duration_ms=1000,
            max_queue_depth=0,
            allowed_encodings=("json",),
            retry_backoff="exponential",
        ),
        storage=StorageConfig(persist_mode="buffer", dead_letter_retention_ms=5),
        queues=(
            QueueConfig("emails", max_lease_duration_ms=60000, allowed_job_types=("welcome",)),
            QueueConfig("reports", allowed_encodings=(), max_queue_depth=10),
        ),
    )


def test_a_queue_has_its_own_values_and_the_global_ones() -> None:
    config = BrokerConfig.from_mapping(
        {
            "limits": {"default_priority": 3, "max_queue_depth": 5},
            "storage": {"dedup_window_ms": 7},
            "queues": [{"name": "own", "default_priority": 0, "dedup_window_ms": 9}],
        }
    )
    own, other = config.settings_of("own"), config.settings_of("other")
    assert config.is_declared("own")
    assert not config.is_declared("other")
    assert (own.default_priority, own.dedup_window_ms, own.max_queue_depth) == (0, 9, 5)
    assert (other.default_priority, other.dedup_window_ms) == (3, 7)
    assert own.allowed_job_types is None


def test_a_key_shows_in_no_representation() -> None:
    config = BrokerConfig(api_keys=(ApiKey("name", "secret"),))
    assert "name" in repr(config)
    assert "secret" not in repr(config)


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"limits": 1}, "limits"),
        ({"limits": {"max_enqueue_batch": 0}}, "limits.max_enqueue_batch"),
        ({"limits": {"max_enqueue_batch": 2**32}}, "limits.max_enqueue_batch"),
        ({"limits": {"max_enqueue_batch": True}}, "limits.max_enqueue_batch"),
        ({"limits": {"max_enqueue_batch": "5"}}, "limits.max_enqueue_batch"),
        ({"limits": {"max_lease_duration_ms": 2**63}}, "limits.max_lease_duration_ms"),
        ({"limits": {"max_queue_name_bytes": 65536}}, "limits.max_queue_name_bytes"),
        ({"limits": {"default_priority": 10}}, "limits.default_priority"),
        ({"limits": {"default_priority": None}}, "limits.default_priority"),
        ({"limits": {"max_queue_depth": -1}}, "limits.max_queue_depth"),
        ({"limits": {"retry_backoff": "linear"}}, "limits.retry_backoff"),
        ({"limits": {"allowed_encodings": "json"}}, "limits.allowed_encodings"),
        ({"limits": {"allowed_encodings": [1]}}, "limits.allowed_encodings"),
        ({"limits": {"default_max_attempts": 101}}, "limits.default_max_attempts"),
        ({"limits": {"retry_delay_ms": 3_600_001}}, "limits.retry_delay_ms"),
        ({"limits": {"max_message_bytes": 1024}}, "limits.max_payload_bytes"),
        ({"storage": {"persist_mode": "sometimes"}}, "storage.persist_mode"),
        ({"storage": {"dedup_window_ms": 0}}, "storage.dedup_window_ms"),
        ({"storage": {"sweep_limit": 0}}, "storage.sweep_limit"),
        ({"storage": {"sweep_interval_ms": 0}}, "storage.sweep_interval_ms"),
        ({"storage": {"command_queue_capacity": "x"}}, "storage.command_queue_capacity"),
        ({"server": {"listen_addr": ""}}, "server.listen_addr"),
        ({"server": {"strict_queues": "yes"}}, "server.strict_queues"),
        ({"server": {"tls_cert_path": "c"}}, "server.tls_key_path"),
        ({"server": {"tls_key_path": "k"}}, "server.tls_cert_path"),
        ({"auth": {"api_keys": ["k"]}}, "auth.api_keys"),
        ({"auth": {"api_keys": "k"}}, "auth.api_keys"),
        ({"auth": {"api_keys": [{"key": "k"}]}}, "auth.api_keys"),
        ({"auth": {"api_keys": [{"name": "n", "key": "k", "role": "r"}]}}, "auth.api_keys"),
        ({"auth": {"api_keys": [{"name": "", "key": "k"}]}}, "auth.api_keys.name"),
        ({"auth": {"api_keys": [{"name": "n", "key": ""}]}}, "auth.api_keys.key"),
        ({"auth": {"api_keys": [{"name": "n", "key": "a b"}]}}, "auth.api_keys.key"),
        ({"auth": {"api_keys": [{"name": "n", "key": "é"}]}}, "auth.api_keys.key"),
        (
            {"auth": {"api_keys": [{"name": "n", "key": "a"}, {"name": "n", "key": "b"}]}},
            "auth.api_keys.name",
        ),
        (
            {"auth": {"api_keys": [{"name": "n", "key": "a"}, {"name": "m", "key": "a"}]}},
            "auth.api_keys.key",
        ),
        ({"queues": {"name": "q"}}, "queues"),
        ({"queues": ["q"]}, "queues"),
        ({"queues": [{}]}, "queues.name"),
        ({"queues": [{"name": 1}]}, "queues.name"),
        ({"queues": [{"name": "a/b"}]}, "queues.name"),
        ({"queues": [{"name": "q" * 513}]}, "queues.name"),
        ({"queues": [{"name": "q"}, {"name": "q"}]}, "queues.name"),
        ({"queues": [{"name": "q", "default_priority": 10}]}, "queues['q'].default_priority"),
        ({"queues": [{"name": "q", "allowed_job_types": []}]}, "queues['q'].allowed_job_types"),
        ({"queues": [{"name": "q", "allowed_job_types": 1}]}, "queues['q'].allowed_job_types"),
        ({"queues": [{"name": "q", "retry_delay_ms": 4_000_000}]}, "queues['q'].retry_delay_ms"),
        (
            {"queues": [{"name": "q", "max_attempts_ceiling": 2}]},
            "queues['q'].default_max_attempts",
        ),
        (
            {"queues": [{"name": "q", "max_payload_bytes": 2**25}]},
            "queues['q'].max_payload_bytes",
        ),
    ],
)
def test_a_wrong_value_is_named_by_its_key(document: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        BrokerConfig.from_mapping(document)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


def test_a_file_that_is_not_there_or_no_toml_is_named(tmp_path: Path) -> None:
    missing, broken, binary = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    broken.write_text("[limits\n")
    binary.write_bytes(b"\xff\xfe")
    for path in (missing, broken, binary, tmp_path):
        with pytest.raises(ConfigError) as caught:
            BrokerConfig.from_toml(path)
        assert caught.value.field == str(path)


def test_every_limit_is_checked_when_set_in_code_too() -> None:
    for item in fields(LimitsConfig):
        if "range" in item.metadata:
            low, high = item.metadata["range"]
            for value in (low - 1, high + 1):
                with pytest.raises(ConfigError, match=item.name):
                    LimitsConfig(**{item.name: value})
    with pytest.raises(ConfigError):
        replace(LimitsConfig(), max_reserve_queues=1.5)  # type: ignore[arg-type]


def test_the_limits_take_their_largest_values() -> None:
    largest = {
        item.name: item.metadata["range"][1]
        for item in fields(LimitsConfig)
        if "range" in item.metadata
    }
    assert (
        BrokerConfig(limits=LimitsConfig(**largest)).settings_of("q").max_queue_depth == 2**63 - 1
    )
