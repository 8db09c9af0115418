"""One ack or nack, repeated until it is answered or the lease ends."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

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

# An enum's members are looked up slowly.
_SETTLING: Final = Phase.SETTLING
_DONE: Final = Verdict.DONE

OnSettled: TypeAlias = "Callable[[HeldLease, Verdict, Any, CallError | None], None]"


class Settlement:
    """The last part of a held lease: sends its ack or nack until that is settled.

    When it is, the lease is closed and the callback called, once: by a callback, or at once
    if the channel is closed. A base of :class:`HeldLease` and no object of its own, because
    there is one for each job.
    """

    __slots__ = (
        "_may_have_arrived",
        "_method",
        "_on_settled",
        "_request",
        "_tries",
        "end",
        "keeper",
        "lost",
        "phase",
        "settled",
    )

    end: float
    keeper: LeaseKeeper
    lost: str | None
    phase: Phase
    settled: trio.Event | None

    def close(self) -> None:
        """Let go of the lease."""
        raise NotImplementedError

    def settle(
        self, method: Any, request: Any, on_settled: OnSettled, now: float | None = None
    ) -> None:
        """Send an ack or nack, and repeat it until it is answered or the lease ends.

        ``on_settled`` is called once, later (or at once if the channel is closed), when the
        lease is closed. The heartbeat goes on until then. The holder must have looked at
        ``check`` and ``phase``. ``now`` is Trio's time, if the caller has it.
        """
        self.phase = _SETTLING
        self._method = method
        self._request = request
        self._on_settled = on_settled
        self._tries = 1
        self._may_have_arrived = False
        self._send(trio.current_time() if now is None else now)

    def _send(self, now: float) -> None:
        try:
            self.keeper.channel.start_unary(
                self._method,
                self._request,
                self._answered,
                timeout=self.end - now,  # at or after the end it fails there, and never leaves
                urgent=True,
                now=now,
            )
        except ChannelClosed as error:
            self._settle(Verdict.FAILED, None, error)

    def _send_again(self) -> None:
        self.keeper.repeats.discard(self)
        if self.phase is _SETTLING:  # else its holder has let go
            self._tries += 1
            self._send(trio.current_time())

    def _settle(self, verdict: Verdict, response: Any, error: CallError | None) -> None:
        if verdict is Verdict.LOST and error is not None:
            self.lost = error.message or error.status.name
        self.close()
        if self.settled is not None:
            self.settled.set()
        self._on_settled(self, verdict, response, error)  # type: ignore[arg-type]

    def _answered(self, response: Any, error: CallError | None) -> None:
        if self.phase is not _SETTLING:
            return
        if error is None:
            # As in _settle, for there is one of these for each job.
            self.close()
            if self.settled is not None:
                self.settled.set()
            self._on_settled(self, _DONE, response, None)  # type: ignore[arg-type]
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
        keeper = self.keeper
        if (
            (error.origin == "server" and error.status in _HOPELESS)
            or isinstance(error, ChannelClosed)
            or keeper.stopped
            or again_at >= self.end
        ):
            self._settle(Verdict.FAILED, None, error)
            return
        keeper.repeats.add(self)
        keeper.wheel.start(Timer(self._send_again), again_at)

    def told_lost(self, error: CallError) -> None:
        """A beat says what the ack or nack would be told: one that waits for its next try need
        not be sent. One that is on its way may be the reason: its own answer says it."""
        if self in self.keeper.repeats:
            self.keeper.repeats.discard(self)
            self._answered(None, error)

    def give_up(self) -> None:
        """The client's block has ended before the next try."""
        self.keeper.repeats.discard(self)
        if self.phase is _SETTLING:
            closed = ChannelClosed(unprocessed=not self._may_have_arrived)
            self._settle(Verdict.FAILED, None, closed)
