"""Limits that make no sense are refused by name."""

from __future__ import annotations

import pytest

from sepp_trio.transport.server import ServerConfig


def test_the_defaults_are_fine() -> None:
    assert ServerConfig().max_message_bytes == 16 * 1024 * 1024


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_message_bytes", 0),
        ("max_message_bytes", 2**32),
        ("max_calls", 0),
        ("max_connections", -1),
        ("stall_timeout", 0),
        ("drain_timeout", -1.0),
        ("max_early_resets", -1),
    ],
)
def test_a_wrong_limit_is_named(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        ServerConfig(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["drain_timeout", "max_early_resets"])
def test_some_may_be_nothing(field: str) -> None:
    assert getattr(ServerConfig(**{field: 0}), field) == 0
