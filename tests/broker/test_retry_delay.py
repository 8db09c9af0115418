"""The delay after a nack that names none."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sepp_trio.broker.config import BrokerConfig, QueueSettings
from sepp_trio.broker.retry_delay import policy_delay_ms

DEFAULTS = BrokerConfig().settings_of("q")
EXPONENTIAL = replace(
    DEFAULTS, retry_delay_ms=1000, retry_backoff="exponential", retry_delay_max_ms=10_000
)


def spread(settings: QueueSettings, attempt: int) -> tuple[int, int]:
    """The shortest and longest delay of many jobs."""
    delays = [policy_delay_ms(settings, uuid.uuid4().bytes, attempt) for _ in range(2000)]
    return min(delays), max(delays)


@pytest.mark.parametrize(
    ("settings", "attempt", "low", "high"),
    [
        (DEFAULTS, 1, 0, 0),
        (replace(EXPONENTIAL, retry_delay_ms=0), 5, 0, 0),
        (replace(EXPONENTIAL, retry_backoff="none"), 7, 750, 1000),
        (EXPONENTIAL, 1, 750, 1000),
        (EXPONENTIAL, 3, 3000, 4000),
        (EXPONENTIAL, 5, 7500, 10_000),
        (EXPONENTIAL, 2**32 - 1, 7500, 10_000),
        (replace(EXPONENTIAL, max_schedule_horizon_ms=100), 5, 75, 100),
    ],
)
def test_up_to_a_quarter_is_taken_off_what_the_policy_gives(
    settings: QueueSettings, attempt: int, low: int, high: int
) -> None:
    shortest, longest = spread(settings, attempt)
    assert low <= shortest <= longest <= high
    # The whole range is used.
    assert longest - shortest >= (high - low) * 0.9


@given(st.binary(min_size=16, max_size=16), st.integers(1, 2**32 - 1))
def test_a_job_and_attempt_always_get_the_same(job_id: bytes, attempt: int) -> None:
    delay = policy_delay_ms(EXPONENTIAL, job_id, attempt)
    assert delay == policy_delay_ms(EXPONENTIAL, job_id, attempt)
