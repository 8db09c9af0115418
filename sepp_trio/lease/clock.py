"""The server's time as points on Trio's clock.

The server's clock and ours are never compared: what is learned, from the times at which a
request left and its answer came, is where the server's clock stands on Trio's. A call in
whose answer the server looks at its clock bounds that offset from both sides; all later
answers have to agree with it. One that does not (the server granted something else than
usual, or somebody set its clock) gets the cautious reading at once and is marked as not
certain; the keeper then asks the server for its time, and reads it again.
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


class Grant(NamedTuple):
    """What an answer says about a lease, on Trio's clock."""

    end: float
    """Never later than the server's end of the lease, if ``certain``, but for what the clocks
    drift apart while it lasts (a holder's margin is larger); nor than the receipt plus what
    was granted, ever."""

    length: float
    """Seconds of lease left at its receipt, or what was granted where that is known."""

    certain: bool
    """False: the answer does not fit what is known; ask for the server's time."""


class ServerClock:
    """Where the server's clock (seconds since the epoch) stands on Trio's.

    Pure: every time comes in as an argument. ``sent`` and ``received`` are points on Trio's
    clock, server times are seconds since the epoch.
    """

    __slots__ = ("_at", "_high", "_low", "_round_trip", "longest_lease", "looked_at")

    def __init__(self) -> None:
        # The offset, server's clock less Trio's, lay between these two at ``_at``.
        self._low = -inf
        self._high = inf
        self._at = 0.0
        self._round_trip = 0.0
        self.longest_lease = inf
        """Seconds; the server's own limit, as far as it said (a queue may have another)."""
        self.looked_at = -inf
        """When the server's time was last asked for."""

    @property
    def known(self) -> bool:
        """Whether the server's time was ever learned."""
        return self.looked_at > -inf

    def observe(self, server_time: float, sent: float, received: float) -> bool:
        """Take in the server's time out of one answer.

        Returns:
            Whether it contradicts what was known: the server's clock was set.
        """
        low = server_time - received
        high = server_time + _TICK - sent
        old_low, old_high = self._bounds(received)
        jumped = low > old_high or high < old_low
        self._low = low if jumped else max(low, old_low)
        self._high = high if jumped else min(high, old_high)
        self._at = self.looked_at = received
        self._round_trip = received - sent
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
            usual: Seconds that the server granted last time for the same wish.
        """
        asked = _as_granted(asked)
        drift = _DRIFT * abs(received - self._at)
        low, high = self._low - drift, self._high + drift
        slack = _SLACK + 2 * self._round_trip
        expected = full = min(asked, self.longest_lease)
        if usual is not None and not -slack <= usual - full <= slack:
            expected = min(asked, usual)
        # The offset that this answer shows if the server granted what is expected.
        shown_low = expires_at - expected - received
        shown_high = expires_at - expected + _TICK - sent
        if low - slack <= shown_high and shown_low <= high + slack and self.known:
            if expected == full:  # known to the millisecond
                self._narrow(shown_low, shown_high, low, high, received)
                high = self._high
            end = expires_at - high
            if end > received + asked:
                end = received + asked
            return Grant(end, expected, True)
        # Unless the server let it wait for a job, the request was answered at once.
        cautious = expected + (max(sent, received - self._round_trip) if self.known else sent)
        end = expires_at - high
        if not sent <= end <= received + asked:
            end = cautious  # no grant looks like that: the clock was set
        end = min(end, cautious)
        return Grant(end, max(end - received, 0.0), certain=False)

    def reread(self, expires_at: float, asked: float, received: float) -> Grant:
        """Read an answer again, after the server's time was asked for."""
        asked = _as_granted(asked)
        end = min(expires_at - self._high_at(received), received + asked)
        return Grant(end, max(end - received, 0.0), certain=True)

    def _narrow(
        self, shown_low: float, shown_high: float, low: float, high: float, received: float
    ) -> None:
        """Take in the offset that an ordinary answer shows: this is what follows a drift."""
        if shown_low > high:
            # A hair beyond what is known. An answer that let us wait does not bound the other
            # side: what it shows there may be off by the whole wait.
            self._low, self._high = shown_low, min(shown_high, shown_low + _SLACK)
        elif shown_high < low:
            self._low, self._high = max(shown_low, shown_high - _SLACK), shown_high
        else:
            self._low, self._high = max(low, shown_low), min(high, shown_high)
        self._at = received

    def _bounds(self, now: float) -> tuple[float, float]:
        drift = _DRIFT * abs(now - self._at)
        return self._low - drift, self._high + drift

    def _high_at(self, now: float) -> float:
        return self._high + _DRIFT * abs(now - self._at)


def _as_granted(asked: float) -> float:
    """The seconds of lease that the server makes of a wish: it cuts to whole milliseconds."""
    return max(int(asked * 1000 + 1e-6), 1) / 1000
