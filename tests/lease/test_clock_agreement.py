"""A lease is not read as shorter than it is because answers differ by a hair."""

from __future__ import annotations

import pytest

from sepp_trio.lease import ServerClock

AHEAD = 1_800_000_000.0


def server_ms(at: float) -> float:
    """What the server's clock shows at a point on Trio's, cut to milliseconds."""
    return int((AHEAD + at) * 1000 + 1e-3) / 1000


def clock_at(now: float) -> ServerClock:
    clock = ServerClock()
    clock.observe(server_ms(now), now, now)
    return clock


@pytest.mark.parametrize("asked", [2.1234, 5.5699, 0.0015, 1e-4])
def test_a_wish_in_fractions_of_a_millisecond_teaches_nothing_wrong(asked: float) -> None:
    clock = clock_at(10.0)
    for step in range(20):
        now = 10.0 + step / 7
        granted = max(int(asked * 1000), 1) / 1000
        grant = clock.grant(server_ms(now) + granted, asked, now, now)
        assert grant.certain == (grant.end > now)
        assert grant.length == pytest.approx(granted)
        assert now + granted - 0.003 < grant.end <= server_ms(now) - AHEAD + granted + 1e-6
    # The whole lease, though the server let it wait for a job.
    waited = clock.grant(server_ms(20.0) + 1.624, 1.624, 17.0, 20.0)
    assert 21.61 < waited.end <= server_ms(20.0) - AHEAD + 1.624 + 1e-6


@pytest.mark.parametrize("drift", [0.004, -0.004])
def test_a_small_disagreement_after_a_long_wait_costs_milliseconds_not_the_wait(
    drift: float,
) -> None:
    clock = clock_at(10.0)
    clock.grant(server_ms(10.5) + 1.624, 1.624, 10.5, 10.5)
    expires = server_ms(13.0 + drift) + 1.624
    grant = clock.grant(expires, 1.624, 10.6, 13.0)
    assert grant.end > 13.0 + 1.624 - 0.02
