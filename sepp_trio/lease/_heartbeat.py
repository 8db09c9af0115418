"""The heartbeat of one lease: a timer in the keeper's wheel and at most one extend on its way."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import trio
from grpclib.const import Status

from ..transport import CallError, ChannelClosed, PendingCall
from ..wire import records
from ._states import Phase
from ._wheel import Alarm, grain_for

if TYPE_CHECKING:
    from ._held import HeldLease
    from .keeper import LeaseKeeper

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0

_HELD, _SETTLED = Phase.HELD, Phase.SETTLED  # an enum's members are looked up slowly


class Heartbeat(Alarm):
    """Extends a lease again and again, until stopped or until there is nothing to extend."""

    __slots__ = (
        "_answered",
        "_call",
        "_failures",
        "_keeper",
        "_lease",
        "_request",
        "_sent",
        "_stopped",
    )

    def __init__(self, keeper: LeaseKeeper, lease: HeldLease) -> None:
        self._bucket = None
        self._keeper = keeper
        self._lease = lease
        self._stopped = False
        self._call: PendingCall | None = None
        """The beat that is on its way. It has no timer of its own: this alarm is at the lease's
        end meanwhile."""
        self._sent = 0.0
        self._failures = 0
        self._answered: trio.Event | None = None
        self._request: bytes | None = None
        """The extend that each beat sends; most jobs end before their first."""

    def stop(self) -> None:
        """No beat from now on; one that is on its way is still taken in."""
        self._stopped = True
        if self._call is None:
            super().stop()

    def withdraw(self) -> None:
        """``stop``, and a beat that waits for its turn, or for a connection, never leaves."""
        self._stopped = True
        if self._call is None:
            super().stop()
        elif self._call.recall():
            self._ended()

    async def wait_answered(self) -> None:
        """Wait until no beat is on its way."""
        while self._call is not None:
            self._answered = self._answered or trio.Event()
            await self._answered.wait()

    def next(self, now: float, spread: float = 1.0) -> None:
        """Set the time of the next beat: ``spread`` (0 to 1) of an interval from now."""
        lease = self._lease
        left = lease.end - now
        interval = lease.interval
        if interval is None or interval > 0.8 * left:
            interval = left / 3
        self._start_timer(now + max(interval * spread, 0.005), interval)

    def hurry(self, now: float) -> None:
        """The lease ends sooner than it seemed; so may many others that are told now."""
        if self._call is not None:
            self._await_answer(now)
        else:
            self.next(now, random.random())

    def _start_timer(self, due: float, interval: float) -> None:
        if not self._stopped:
            self._keeper.wheel.start(self, due, grain_for(interval))

    def ring(self, now: float) -> None:
        """Send an extend, unless the lease needs none."""
        lease = self._lease
        if self._call is not None:
            self._await_answer(now)
            return
        if self._stopped or self._is_over(now):
            return
        own = lease.usual or lease.asked
        if lease.extends_itself:
            self._start_timer(now + own / 8, own / 8)
            return
        if lease.end - now > own:
            # Extended further than a beat would: it must not be shortened.
            self._start_timer(lease.end - own * 2 / 3, own / 3)
            return
        keeper = self._keeper
        keeper.freshen(now, own)
        request = self._request
        if request is None:
            wish = lease.extend_request(lease.asked)
            request = self._request = keeper.methods.extend.encode(wish)
        self._sent = now
        try:
            self._call = keeper.channel.start_unary(
                keeper.beat, request, self._take_answer, timeout=None, urgent=True, now=now
            )
        except ChannelClosed:
            return  # the client's block has ended: the lease runs out in its own time
        lease.count.sent += 1
        self._await_answer(now)

    def _await_answer(self, now: float) -> None:
        """Wait on, or withdraw the beat: after the lease's end nothing may be sent for it."""
        left = self._lease.end - now
        grain = grain_for(left)
        if left > grain:
            # The wheel rounds up: this is before the end, and nearer to it each time.
            self._keeper.wheel.start(self, now + left - grain, grain)
            return
        assert self._call is not None
        self._call.cancel()
        if self._ended() and not self._stopped:
            self._failed(now, "no answer until its end")

    def _is_over(self, now: float) -> bool:
        lease = self._lease
        if lease.phase is _HELD:
            return lease.check(now) is not None
        return lease.phase is _SETTLED or now >= lease.end

    def _take_answer(
        self, response: records.ExtendResponse | None, error: CallError | None
    ) -> None:
        if not self._ended():
            return
        lease = self._lease
        now = trio.current_time()
        if response is not None and response.lease_expires_at is not None:
            self._failures = 0
            lease.granted(response.lease_expires_at, lease.asked, self._sent, now)
            self.next(now)
        elif error is not None and tells_loss(error):
            if lease.phase is _HELD:
                lease.lose(error.message or error.status.name)
            else:
                lease.told_lost(error)
        else:
            self._failed(now, error or "the answer has no expiry")

    def _ended(self) -> bool:
        """A beat is over; whether that matters to anybody."""
        self._call = None
        if self._answered is not None:
            self._answered.set()
            self._answered = None
        if self._stopped:
            super().stop()
        return self._lease.phase is not _SETTLED

    def _failed(self, now: float, why: object) -> None:
        lease = self._lease
        self._failures += 1
        lease.count.failed += 1
        self._keeper.beat_failed(lease, why)
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(self._failures - 1, 10))
        # Never long enough to miss the end, never short enough to be a hot loop.
        pause = max(min(pause, (lease.end - now) / 4), 0.01) * (0.5 + random.random() / 2)
        self._start_timer(now + pause, pause)


def tells_loss(error: CallError) -> bool:
    """Whether the server says that the job is not leased to us."""
    return error.origin == "server" and error.status in (
        Status.NOT_FOUND,
        Status.FAILED_PRECONDITION,
    )
