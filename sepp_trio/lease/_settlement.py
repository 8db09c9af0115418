"""One ack or nack, repeated until it is answered or the lease ends."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import trio
from grpclib.const import Status

from ..transport import CallError, ChannelClosed
from ._states import Phase, Verdict
from ._wheel import Timer

if TYPE_CHECKING:
    from ._held import HeldLease
    from .keeper import LeaseKeeper

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0

_HOPELESS = frozenset((Status.INVALID_ARGUMENT, Status.UNIMPLEMENTED, Status.OUT_OF_RANGE))


class Settlement:
    """Sends one request until it is settled.

    When it is, the lease is closed and ``on_settled`` called, once: by a callback, or at once
    if the channel is closed.
    """

    __slots__ = (
        "_keeper",
        "_lease",
        "_may_have_arrived",
        "_method",
        "_on_settled",
        "_request",
        "_tries",
    )

    def __init__(
        self,
        keeper: LeaseKeeper,
        lease: HeldLease,
        method: Any,
        request: Any,
        on_settled: Callable[[Verdict, Any, CallError | None], None],
    ) -> None:
        self._keeper = keeper
        self._lease = lease
        self._method = method
        self._request = request
        self._on_settled = on_settled
        self._tries = 0
        self._may_have_arrived = False

    def send(self, now: float | None = None) -> None:
        """Make one try; ``now`` is Trio's time, if the caller has it."""
        if self._tries:
            self._keeper.repeats.discard(self)
            if self._lease.phase is not Phase.SETTLING:
                return  # its holder has let go
        self._tries += 1
        if now is None:
            now = trio.current_time()
        try:
            self._keeper.channel.start_unary(
                self._method,
                self._request,
                self._answered,
                timeout=max(self._lease.end - now, 0.001),
                urgent=True,
                now=now,
            )
        except ChannelClosed as error:
            self._settle(Verdict.FAILED, None, error)

    def _settle(self, verdict: Verdict, response: Any, error: CallError | None) -> None:
        lease = self._lease
        if verdict is Verdict.LOST and error is not None:
            lease.lost = error.message or error.status.name
        lease.close()
        if lease.settled is not None:
            lease.settled.set()
        self._on_settled(verdict, response, error)

    def _answered(self, response: Any, error: CallError | None) -> None:
        if self._lease.phase is not Phase.SETTLING:
            return
        if error is None:
            self._settle(Verdict.DONE, response, None)
            return
        if error.origin == "server":
            if error.status is Status.NOT_FOUND:
                verdict = Verdict.DONE_BEFORE if self._may_have_arrived else Verdict.LOST
                self._settle(verdict, None, error)
                return
            if error.status is Status.FAILED_PRECONDITION:
                self._settle(Verdict.LOST, None, error)
                return
        if not error.unprocessed:
            self._may_have_arrived = True
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(self._tries - 1, 10))
        again_at = trio.current_time() + pause * (0.5 + random.random() / 2)
        if (
            (error.origin == "server" and error.status in _HOPELESS)
            or isinstance(error, ChannelClosed)
            or self._keeper.stopped
            or again_at >= self._lease.end
        ):
            self._settle(Verdict.FAILED, None, error)
            return
        self._keeper.repeats.add(self)
        self._keeper.wheel.start(Timer(self.send), again_at)

    def give_up(self) -> None:
        """The client's block has ended before the next try."""
        self._keeper.repeats.discard(self)
        if self._lease.phase is Phase.SETTLING:
            closed = ChannelClosed(unprocessed=not self._may_have_arrived)
            self._settle(Verdict.FAILED, None, closed)
