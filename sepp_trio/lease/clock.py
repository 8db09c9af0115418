"""The server's time as points on Trio's clock.

The server's clock and ours are never compared: what is learned, from the times at which a
request left and its answer came, is where the server's clock stands on Trio's. Only an answer
in which the server says its time bounds that offset from both sides. The end of a lease bounds
it from below, for the server may have granted less than was asked, but never more. A lease is
read with the upper bound, so that no reading is late.

An answer that fits no offset in these bounds (the server granted something else than usual, or
somebody set its clock) gets the cautious reading and is marked as not certain, as is every
answer while the bounds are far apart for such a lease; the keeper then asks the server for its
time, and reads it again.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

_TICK = 0.001
"""Seconds: the server counts whole milliseconds, cut off."""

_DRIFT = 0.0005
"""Seconds a second by which two healthy clocks may part."""

_SLACK = 0.005
"""Seconds by which an answer may differ from what is known without being odd."""

_LOOK_AGAIN = 60.0
"""Seconds for which the server's time is known well enough for any lease."""

_PRECISE = 20
"""A lease may be read as shorter than it is by one such part of it."""


class Grant(NamedTuple):
    """What an answer says about a lease, on Trio's clock."""

    end: float
    """Never later than the server's end of the lease, but for what the clocks drift apart while
    it lasts (a holder's margin is larger), if its clock was not set since its time was asked
    for; nor than the receipt plus what was asked for, ever."""

    length: float
    """Seconds of lease left at its receipt, or what was granted where that is known."""

    certain: bool
    """False: the answer does not fit what is known, or the lease may well last longer, or is
    over already; ask for the server's time."""


class ServerClock:
    """Where the server's clock (seconds since the epoch) stands on Trio's.

    Pure: every time comes in as an argument. ``sent`` and ``received`` are points on Trio's
    clock, server times are seconds since the epoch.
    """

    __slots__ = (
        "_at",
        "_high",
        "_low",
        "_odd_at",
        "_quick",
        "_round_trip",
        "longest_lease",
        "looked_at",
    )

    def __init__(self) -> None:
        # The offset, server's clock less Trio's, lay between these two at ``_at``.
        self._low = -inf
        self._high = inf
        self._at = 0.0
        # When the latest answer came that does not fit them, until they are known anew.
        self._odd_at = inf
        # Of the latest question for the server's time, and the usual for a quick one.
        self._round_trip = 0.0
        self._quick = inf
        self.longest_lease = inf
        """Seconds; the server's own limit, as far as it said (a queue may have another)."""
        self.looked_at = -inf
        """When the server's time was last asked for."""

    @property
    def known(self) -> bool:
        """Whether the server's time was ever learned."""
        return self.looked_at > -inf

    def is_stale(self, now: float, length: float) -> bool:
        """Whether to ask for the server's time before a lease of so many seconds is read."""
        return now - self.looked_at > _LOOK_AGAIN or self.is_vague(now, length)

    def is_vague(self, now: float, length: float) -> bool:
        """Whether too little is known for a lease of so many seconds, and need not be."""
        apart = self._high - self._low + 2 * _DRIFT * abs(now - self._at)
        return apart > max(length / _PRECISE, 2 * self._quick + 3 * _TICK)

    def observe(self, server_time: float, sent: float, received: float) -> bool:
        """Take in the server's time out of one answer.

        Returns:
            Whether it contradicts what was known: the server's clock was set.
        """
        low = server_time - received
        # If it was stamped at once the clocks may have drifted apart on the answer's way.
        high = server_time + _TICK - sent + _DRIFT * (received - sent)
        old_low, old_high = self._bounds(received)
        jumped = low > old_high or high < old_low
        # After an odd answer the old bounds may be those of a clock that has been set since, by
        # less than this answer can show.
        doubted = sent >= self._odd_at
        if doubted:
            self._odd_at = inf
        if not (jumped or doubted):
            low, high = max(low, old_low), min(high, old_high)
        self._low, self._high = low, high
        self._at = self.looked_at = received
        self._round_trip = received - sent
        # A network that has become slow for good is seen as such after a while.
        self._quick = min(self._round_trip, 1.5 * self._quick + _TICK)
        return jumped

    def grant(
        self,
        expires_at: float,
        asked: float,
        sent: float,
        received: float,
        usual: float | None = None,
    ) -> Grant:
        """Read a lease's end out of an answer that granted or extended it.

        Args:
            expires_at: The lease's end, by the server's clock.
            asked: Seconds of lease that were asked for; the server never grants more.
            sent, received: When the request left and the answer came.
            usual: Seconds that the server granted last time for the same wish, as far as known.
        """
        asked = _as_granted(asked)
        expected = min(asked, self.longest_lease)
        if self.known:
            low, high = self._bounds(received)
            end = expires_at - high
            latest = expires_at - low
            fits = self._fits(expected, sent, received, end, latest)
            if fits:
                end = self._follow(expires_at, asked, expected, received, low, high)
            elif usual is not None and usual != expected:
                expected = min(asked, usual)
                # It was learned as exactly as the server's time is known.
                slack = _SLACK + high - low
                if end <= received + expected + slack and latest >= sent + expected - slack:
                    fits = True
                    end = min(end, received + expected)
            if fits:
                # One that is over was long on its way, or the clock was set back meanwhile.
                over = end <= received
                if over:
                    self._odd_at = received
                return Grant(end, expected, not (over or self.is_vague(received, expected)))
            self._odd_at = received
            if end <= received + expected and latest >= sent:
                # A shorter grant; or the clock was set back, and the lease ends later.
                return Grant(end, max(end - received, 0.0), certain=False)
        # More than usual, or no grant at all: the clock was set, or is not known yet.
        return Grant(sent + expected - _TICK, expected, certain=False)

    def reread(self, expires_at: float, asked: float, sent: float, received: float) -> Grant:
        """Read the answer about a lease that is held, after the server's time was asked for: if
        its clock was set back, the lease lasts longer."""
        asked = _as_granted(asked)
        low, high = self._bounds(received)
        end = min(expires_at - high, received + asked)
        length = min(asked, self.longest_lease)
        if not self._fits(length, sent, received, expires_at - high, expires_at - low):
            length = max(end - received, 0.0)
        # As well as it is known now: long ago it was known worse, however often one asks.
        return Grant(end, length, not self.is_vague(self._at, asked))

    def reread_unheld(self, expires_at: float, asked: float, sent: float, received: float) -> Grant:
        """``reread`` for a lease that was over at its receipt, or seemed to be."""
        grant = self.reread(expires_at, asked, sent, received)
        _, high = self._bounds(received)
        if expires_at - high > received + asked + _SLACK:
            # No such grant by this clock: it was over, and then the clock was set back.
            return Grant(received, grant.length, certain=True)
        return grant

    @staticmethod
    def _fits(length: float, sent: float, received: float, end: float, latest: float) -> bool:
        """Whether a lease of this length may have been granted, to end between these two."""
        return end <= received + length + _SLACK and latest >= sent + length - _TICK - _SLACK

    def _follow(
        self,
        expires_at: float,
        asked: float,
        expected: float,
        received: float,
        low: float,
        high: float,
    ) -> float:
        """Learn from an ordinary answer, and read it: this is what follows a drift."""
        shown = expires_at - asked - received  # the offset is no less: no more was granted
        if shown > low:
            if shown > high:  # a hair beyond what is known
                high = shown + _SLACK + self._round_trip
            self._low, self._high, self._at = shown, high, received
        end = expires_at - high
        if end > received + expected:
            end = received + expected - _SLACK - self._round_trip
        return end

    def _bounds(self, now: float) -> tuple[float, float]:
        drift = _DRIFT * abs(now - self._at)
        return self._low - drift, self._high + drift


def _as_granted(asked: float) -> float:
    """The seconds of lease that the server makes of a wish: it cuts to whole milliseconds."""
    return max(int(asked * 1000 + 1e-6), 1) / 1000
