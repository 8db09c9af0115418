"""The server's clock on Trio's: never late, nearly exact, and right again after a jump."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sepp_trio.lease import ServerClock

HOUR = 3600.0


@dataclass
class Server:
    """A server whose clock stands ``offset`` off Trio's and drifts."""

    offset: float
    drift: float = 0.0
    longest: float = math.inf

    def time(self, at: float) -> float:
        """Its clock: whole milliseconds, cut off."""
        return math.floor((at * (1 + self.drift) + self.offset) * 1000) / 1000

    def end_of(self, stamp: float, length: float) -> tuple[float, float]:
        """The end of a lease that is granted at ``stamp``: by its clock, and by Trio's."""
        expires = self.time(stamp) + min(length, self.longest)
        return expires, (expires - self.offset) / (1 + self.drift)


offsets = st.floats(-2 * HOUR, 2e9, allow_nan=False)
drifts = st.floats(-2e-4, 2e-4)
trips = st.tuples(st.floats(0, 0.2), st.floats(0, 0.2))
"""Seconds to the server and back."""


@given(
    offsets,
    drifts,
    trips,
    st.lists(st.tuples(st.floats(0.01, 30), trips, st.floats(0, 5)), min_size=1, max_size=20),
    st.sampled_from([(30.0, math.inf), (600.0, 300.0), (60.0, 7.5)]),
)
def test_a_deadline_is_never_late_and_never_much_too_early(
    offset: float,
    drift: float,
    first: tuple[float, float],
    answers: list[tuple[float, tuple[float, float], float]],
    lease: tuple[float, float],
) -> None:
    asked, longest = lease
    server = Server(offset, drift, longest)
    clock = ServerClock()
    now = first[0] + first[1]
    clock.observe(server.time(first[0]), 0.0, now)
    usual = None
    worst = sum(first)
    for pause, (there, back), waited in answers:
        sent = now + pause
        stamp = sent + there + waited
        now = stamp + back
        expires, truth = server.end_of(stamp, asked)
        grant = clock.grant(expires, asked, sent, now, usual)
        usual = grant.length
        # A drift acts on the lease itself as well; the margin of its holder is larger.
        drifted = abs(drift) * asked + 1e-5
        assert grant.end <= truth + drifted
        assert grant.end <= now + min(asked, longest) + 0.5
        if not grant.certain:
            clock.observe(server.time(now), now, now)
            grant = clock.reread(expires, asked, sent, now)
            usual = grant.length
            worst = max(worst, there + back + 0.003)  # as exactly is known what is granted
        age = now + 1
        assert grant.end >= truth - worst - 0.001 * age - 0.002 - drifted


@pytest.mark.parametrize("ahead", [HOUR, -HOUR, 0.0, 1.8e9])
def test_it_is_exact_to_the_round_trip(ahead: float) -> None:
    server = Server(ahead)
    clock = ServerClock()
    clock.observe(server.time(100.001), 100.0, 100.002)
    expires, truth = server.end_of(104.0, 30)
    grant = clock.grant(expires, 30, 100.1, 104.001)  # the reserve had waited
    assert grant.certain
    assert truth - 0.005 < grant.end <= truth


@pytest.mark.parametrize("jump", [HOUR, -HOUR, 20.0, -20.0, 5.0, -5.0])
def test_after_a_jump_the_next_answer_is_right_again(jump: float) -> None:
    server = Server(1.8e9)
    clock = ServerClock()
    clock.observe(server.time(0.0005), 0.0, 0.001)
    expires, _ = server.end_of(1.0, 30)
    assert clock.grant(expires, 30, 0.9995, 1.0005).certain
    server.offset += jump
    expires, truth = server.end_of(11.0, 30)
    grant = clock.grant(expires, 30, 10.9995, 11.0005, 30.0)
    assert not grant.certain
    # An extend tells by itself, unless it looks like a shorter grant: never late in any case.
    assert grant.end <= truth
    if not -30 < jump < 0:
        assert grant.end > truth - 0.005
    assert clock.observe(server.time(11.001), 11.0005, 11.0015)
    grant = clock.reread(expires, 30, 10.9995, 11.0005)
    assert truth - 0.005 < grant.end <= truth
    # And so it goes on.
    expires, truth = server.end_of(20.0, 30)
    grant = clock.grant(expires, 30, 19.9995, 20.0005, grant.length)
    assert grant.certain
    assert truth - 0.010 < grant.end <= truth  # in nine seconds the clocks may have drifted


def test_leases_that_were_granted_before_a_jump_ahead_are_over() -> None:
    server = Server(1.8e9)
    clock = ServerClock()
    clock.observe(server.time(0.0), 0.0, 0.001)
    expires, _ = server.end_of(1.0, 30)
    server.offset += HOUR
    assert clock.observe(server.time(2.0), 2.0, 2.001)
    assert clock.reread(expires, 30, 0.999, 1.001).end < 2


@pytest.mark.parametrize("drift", [0.01, -0.01])
def test_even_a_bad_drift_is_followed(drift: float) -> None:
    server = Server(1.8e9, drift)
    clock = ServerClock()
    clock.observe(server.time(0.0), 0.0, 0.001)
    usual = None
    odd = 0
    for step in range(1, 200):
        now = step * 10.0
        expires, truth = server.end_of(now, 30)
        grant = clock.grant(expires, 30, now - 0.0005, now + 0.0005, usual)
        if not grant.certain:
            odd += 1
            assert grant.end <= truth + 0.31 or drift < 0
            clock.observe(server.time(now + 0.001), now + 0.0006, now + 0.0015)
            grant = clock.reread(expires, 30, now - 0.0005, now + 0.0005)
        usual = grant.length
        # 1 % of 30 s is what a drift does to the lease itself.
        assert truth - 0.35 < grant.end <= truth + 0.31
    assert odd > 100


def test_a_shorter_grant_is_believed_at_once() -> None:
    server = Server(0.0)
    clock = ServerClock()
    clock.observe(server.time(0.0), 0.0, 0.001)
    server.longest = 3
    expires, truth = server.end_of(1.0, 30)
    grant = clock.grant(expires, 30, 0.9995, 1.0005, 30.0)
    assert truth - 0.005 < grant.end <= truth


def test_without_the_servers_time_the_answer_is_not_trusted() -> None:
    clock = ServerClock()
    assert not clock.known
    grant = clock.grant(1.8e9, 30, 5.0, 5.2)
    assert not grant.certain
    assert grant.end == pytest.approx(34.999)
    clock.observe(1.8e9, 5.2, 5.3)
    assert clock.known


def test_the_servers_own_limit_is_expected() -> None:
    server = Server(1.8e9, longest=300.0)
    clock = ServerClock()
    clock.longest_lease = 300.0
    clock.observe(server.time(0.0), 0.0, 0.001)
    expires, truth = server.end_of(1.0, 900)
    grant = clock.grant(expires, 900, 0.9995, 1.0005)
    assert grant.certain
    assert grant.length == 300.0
    assert truth - 0.005 < grant.end <= truth


def test_a_queue_may_grant_more_than_the_servers_limit() -> None:
    server = Server(1.8e9)
    clock = ServerClock()
    clock.longest_lease = 300.0
    clock.observe(server.time(0.0), 0.0, 0.001)
    expires, truth = server.end_of(1.0, 900)
    assert not clock.grant(expires, 900, 0.9995, 1.0005).certain
    clock.observe(server.time(1.001), 1.001, 1.002)
    grant = clock.reread(expires, 900, 0.9995, 1.0005)
    assert truth - 0.005 < grant.end <= truth
    expires, truth = server.end_of(200.0, 900)
    grant = clock.grant(expires, 900, 199.9995, 200.0005, grant.length)
    assert truth - 0.25 < grant.end <= truth
