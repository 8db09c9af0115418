"""The two rules of reading a lease: never later than its true end, and not needlessly early."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st

from sepp_trio.lease import Grant, ServerClock

TICK = 0.001
HEALTHY = 0.0005
"""What the clock allows two clocks to part, seconds a second."""

EXACT = 1e-5
"""Seconds since the epoch are no more exact than this, as floats."""


@dataclass
class World:
    """A server, the way to it, and what a client makes of its answers."""

    offset: float
    drift: float
    clock: ServerClock = field(default_factory=ServerClock)
    now: float = 0.0
    # When the latest lease was asked for.
    sent: float = 0.0
    # Of the latest look.
    looked_at: float = 0.0
    there: float = 0.0
    trip: float = 0.0
    slowest: float = 0.0

    def _server(self, at: float) -> float:
        return math.floor((at * (1 + self.drift) + self.offset) * 1000 + 1e-3) / 1000

    def look(self, there: float, back: float) -> bool:
        """Ask for the server's time."""
        sent = self.now
        time = self._server(sent + there)
        self.looked_at = self.now = sent + there + back
        self.there, self.trip = there, there + back
        self.slowest = max(self.slowest, self.trip)
        return self.clock.observe(time, sent, self.now)

    def lease(
        self, asked: float, granted: float, there: float, back: float, usual: float | None
    ) -> tuple[float, float, Grant]:
        """Be granted a lease: its end as the server says it, its true end, what is read."""
        sent = self.sent = self.now
        stamp = sent + there
        self.now = stamp + back
        expires = self._server(stamp) + granted
        grant = self.clock.grant(expires, asked, sent, self.now, usual)
        # The server's clock need not show the end exactly, nor run as fast as Trio's until then.
        truth = (expires - self.offset) / (1 + self.drift)
        return expires, truth, grant


offsets = st.floats(-7200, 2e9)
drifts = st.floats(-4e-4, 4e-4)
quick = st.floats(0, 0.005)
trips = st.one_of(quick, st.floats(0, 3))
waits = st.one_of(quick, st.floats(0, 70))
pauses = st.one_of(st.just(0.0), st.floats(0, 5), st.floats(0, 4000))
milliseconds = st.integers(1, 600_000).map(lambda ms: ms / 1000)
lengths = st.one_of(st.sampled_from([0.01, 0.1, 1.7, 30.0, 300.0]), milliseconds)
looks = st.tuples(st.just("look"), pauses, trips, trips)
shorter = st.one_of(st.floats(0, 0.05), st.floats(0, 400))
"""Seconds that the server grants less than was asked for."""

leases = st.tuples(st.just("lease"), pauses, waits, trips, lengths, shorter, st.booleans())
stories = st.lists(st.one_of(looks, leases), max_size=12)


def granted_of(asked: float, less: float) -> float:
    return max(math.floor((asked - less) * 1000 + 1e-6), 1) / 1000


@given(offsets, drifts, st.tuples(trips, trips), stories, st.sampled_from([math.inf, 300.0, 5.0]))
@example(
    1.8e9,
    0.0,
    (0.0, 0.0),
    # A lease that is cut by a hair, on a slow way, makes the next one look longer than it is.
    [
        ("look", 0.0, 0.5, 0.5),
        ("lease", 0.0, 0.0, 0.0, 30.0, 0.3, False),
        ("lease", 1.0, 0.5, 0.5, 30.0, 0.0, False),
    ],
    math.inf,
)
@example(
    1.6875,
    0.00028,
    (0.0, 0.0),
    # The clocks drift apart while an answer with the server's time is on its way.
    [("look", 0.0, 0.0, 3.0), ("lease", 0.0, 0.0, 0.0, 0.01, 0.0, False)],
    math.inf,
)
@example(
    0.0, 0.0, (2.0, 0.0), [("lease", 0.0, 0.0, 0.0, 30.0, 29.5, False)], math.inf
)  # far too short, by a clock that is known badly: it looks like one that was set
def test_no_reading_is_late_whatever_is_granted_and_however_long_the_way(
    offset: float,
    drift: float,
    first: tuple[float, float],
    story: list[tuple],  # type: ignore[type-arg]
    longest: float,
) -> None:
    world = World(offset, drift)
    world.look(*first)
    world.clock.longest_lease = longest
    usual: float | None = None
    for what, pause, there, back, *more in story:
        world.now += pause
        if what == "look":
            assert not world.look(there, back)
            continue
        asked, less, as_usual = more
        granted = granted_of(asked, less)
        expires, truth, grant = world.lease(
            asked, granted, there, back, usual if as_usual else None
        )
        usual = grant.length
        # The clocks go on to drift apart until the end, or did since, if that was before.
        late = abs(drift) * abs(truth - world.now) + EXACT
        assert grant.end <= truth + late
        again = world.clock.reread(expires, asked, world.sent, world.now)
        assert again.end <= truth + late
        if not grant.certain:
            received = world.now
            world.look(0.0, 0.0)
            again = world.clock.reread(expires, asked, world.sent, received)
            assert truth - 2 * TICK - late <= again.end <= truth + late


@given(offsets, drifts, st.tuples(trips, trips), stories)
def test_a_full_grant_is_read_as_exactly_as_the_server_s_time_is_known(
    offset: float,
    drift: float,
    first: tuple[float, float],
    story: list[tuple],  # type: ignore[type-arg]
) -> None:
    world = World(offset, drift)
    world.look(*first)
    usual: float | None = None
    for what, pause, there, back, *more in story:
        world.now += pause
        if what == "look":
            world.look(there, back)
            continue
        asked, less, as_usual = more
        granted = granted_of(asked, less if as_usual else 0.0)
        _, truth, grant = world.lease(asked, granted, there, back, usual)
        usual = grant.length
        if granted == asked:
            # A lease that waited for a job is read no worse than one that came at once.
            age = world.now - world.looked_at + world.trip
            known = world.there + TICK + (HEALTHY + abs(drift)) * age
            early = truth - grant.end - abs(drift) * abs(truth - world.now) - EXACT
            assert early <= known + TICK
            if grant.certain:
                assert early <= max(granted / 20, 2 * world.slowest + 3 * TICK) + TICK


@given(offsets, quick, quick, lengths)
def test_a_fresh_full_grant_after_a_quick_round_trip_leaves_nearly_all_of_it(
    offset: float, there: float, back: float, length: float
) -> None:
    world = World(offset, 0.0)
    world.look(there, back)
    _, truth, grant = world.lease(length, length, there, back, None)
    assert grant.certain == (grant.end > world.now)  # but for leases as short as the way
    assert grant.end - world.now >= length - there - back - 3 * TICK
    assert grant.end <= truth + EXACT


@given(
    offsets,
    st.floats(-7200, 7200),
    pauses,
    waits,
    trips,
    lengths,
    st.sampled_from([None, 1.0]),
    quick,
)
def test_after_the_clock_was_set_a_full_grant_is_late_by_its_way_back_at_most(
    offset: float,
    jump: float,
    pause: float,
    there: float,
    back: float,
    length: float,
    usual: float | None,
    look: float,
) -> None:
    world = World(offset, 0.0)
    world.look(look, look)
    world.now += pause
    world.offset += jump
    expires, truth, grant = world.lease(length, length, there, back, usual and length)
    assert grant.end <= truth + back + TICK + EXACT
    if not grant.certain:
        received = world.now
        world.look(look, look)
        again = world.clock.reread(expires, length, world.sent, received)
        assert truth - look - 2 * TICK <= again.end <= truth + EXACT
        assert again.length == length


def test_a_clock_that_was_set_by_less_than_a_slow_look_can_show_is_not_mixed_with_the_old() -> None:
    world = World(1.8e9, 0.0)
    world.look(0.0, 0.0)
    world.offset += 2
    expires, truth, grant = world.lease(30.0, 30.0, 0.0, 0.0, None)
    assert not grant.certain
    received = world.now
    assert not world.look(0.0, 3.0)  # it may have been the same clock all the time
    assert world.clock.reread(expires, 30.0, world.sent, received).end <= truth
