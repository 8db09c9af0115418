"""One job's lease while somebody holds it: its deadline, its heartbeat, its verdict.

The worker works with this class; users get the :class:`~sepp_trio.lease.Lease` around it.
Everything here happens in callbacks and takes no task: a job costs one scope and, with a
heartbeat, one timer.
"""

from __future__ import annotations

from datetime import datetime
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import trio

from ..errors import JobNotFoundError, LeaseLostError, MalformedResponseError
from ..transport import CallError
from ..wire import convert, records
from ._heartbeat import Heartbeat, tells_loss
from ._settlement import Settlement
from ._states import Beats, Phase, Verdict

if TYPE_CHECKING:
    from .clock import Grant
    from .keeper import LeaseKeeper

LEASE_LOST: Final = "lease lost"
TIMED_OUT: Final = "handler timed out"
LET_GO: Final = "its holder has let go of it"

_LARGEST_MARGIN = 0.25

# An enum's members are looked up slowly.
_HELD: Final = Phase.HELD
_SETTLED: Final = Phase.SETTLED


Answer: TypeAlias = "tuple[records.Timestamp, float, float, float]"
"""The lease's end as the server said it, the seconds asked for, when that was sent, and when the
answer came."""


def epoch_seconds(value: records.Timestamp) -> float:
    """A server's time as seconds since the epoch."""
    return value[0] + value[1] / 1e9


def margin_of(length: float) -> float:
    """Seconds before the end of a lease of ``length`` seconds at which its holder must be out.

    More than a bucket of the timer wheel, and than what the run loop needs to notice.
    """
    return min(_LARGEST_MARGIN, length / 20)


class Terms:
    """What an answer granted, worked out once for all of its jobs."""

    __slots__ = ("answer", "certain", "due", "end", "length", "margin")

    def __init__(self, grant: Grant, answer: Answer) -> None:
        self.answer = answer
        self.end, self.length, self.certain = grant
        self.margin = margin_of(self.length)
        self.due = self.end - self.margin


class HeldLease(Settlement):
    """The lease of one delivery of one job.

    ``scope`` is cancelled when the lease is lost or its time, less a margin, is up, and at
    ``limit``; with ``cancel`` for any other reason. The first reason stands in
    ``cancel_reason``, its time in ``cancelled_at``. ``lost`` says why the lease is gone, and
    is final: nothing is sent for it from then on. ``usual`` is what the server grants for
    what the heartbeat asks for.

    Made by :meth:`LeaseKeeper.open`.
    """

    __slots__ = (
        "_answer",
        "_at_most",
        "_joined",
        "_margin",
        "_shield",
        "_turn",
        "asked",
        "attempt",
        "cancel_reason",
        "cancelled_at",
        "count",
        "due",
        "expires_at",
        "heartbeat",
        "interval",
        "job_id",
        "key",
        "limit",
        "scope",
        "usual",
        "worker_id",
    )

    expires_at: records.Timestamp | None
    cancel_reason: str | None
    heartbeat: Heartbeat | None
    scope: trio.CancelScope | None
    """What the holder runs in; there once the lease's end is known."""
    _answer: Answer | None
    _turn: trio.Lock | None
    _joined: set[trio.CancelScope] | None

    def __init__(
        self,
        keeper: LeaseKeeper,
        job_id: str,
        attempt: int,
        worker_id: str | None,
        asked: float,
        interval: float | None,
        shield: bool,
        usual: float | None,
        count: Beats,
    ) -> None:
        self.job_id = job_id
        self.attempt = attempt
        self.worker_id = worker_id
        self._shield = shield
        self.keeper = keeper
        self.asked = asked
        self.interval = interval
        self.count = count
        self.usual = usual
        self.phase = _HELD
        self._margin = 0.0
        # The lease may have been made as short as this by an extend whose answer is not there.
        self._at_most = inf
        self.end = self.limit = self.cancelled_at = inf
        self.due = inf
        """Until then neither the lease nor the limit is over: the scope's deadline."""
        # One statement, because there is one of these for each job.
        self.expires_at = self.cancel_reason = self.lost = self.settled = self.heartbeat = None
        self.scope = self._answer = self._turn = self._joined = None
        key = self.key = (job_id, attempt)
        keeper.held[key] = self

    # ---- the verdict ----

    def check(self, now: float) -> str | None:
        """Why the holder is to stop, if it is. Sees deadlines that the run loop has not yet."""
        if now < self.due:
            return self.cancel_reason
        end = self.end - self._margin if self.phase is _HELD else inf
        if now >= self.limit:
            self._cancelled(TIMED_OUT if self.limit <= end else LEASE_LOST, min(self.limit, end))
        if now >= end and self.lost is None:
            self._cancelled(LEASE_LOST, end)
            self.lost = "its time is up"
        return self.cancel_reason

    def _cancelled(self, reason: str, at: float) -> None:
        if self.cancel_reason is None:
            self.cancel_reason = reason
            self.cancelled_at = at

    def lose(self, why: str) -> None:
        """The server says that the job is not, or no longer, leased to us."""
        now = trio.current_time()
        self.check(now)
        self._cancelled(LEASE_LOST, now)
        if self.lost is None:
            self.lost = why
        self._cancel_scopes(f"{LEASE_LOST}: {why}")
        if self.heartbeat is not None:
            self.heartbeat.withdraw()

    def cancel(self, reason: str) -> None:
        """Cancel the holder, who still has the lease and may settle the job once it is out.

        The heartbeat ends: a holder that does not react loses the lease in its own time.
        """
        now = trio.current_time()
        self.check(now)
        self._cancelled(reason, now)
        self._cancel_scopes(reason)
        if self.heartbeat is not None:
            self.heartbeat.stop()

    def _cancel_scopes(self, reason: str) -> None:
        assert self.scope is not None
        self.scope.cancel(reason=reason)
        for scope in self._joined or ():
            scope.cancel(reason=reason)

    def set_limit(self, limit: float) -> None:
        """Cancel the holder at ``limit``, on Trio's clock, unless the lease ends before."""
        self.limit = limit
        self._set_deadline()

    def close(self) -> None:
        """Let go: no beat, no repeat, no cancel from now on."""
        if self._joined:
            for scope in self._joined:
                if self.phase is Phase.HELD:
                    scope.cancel(reason=LET_GO)
                else:
                    scope.deadline = inf
        self.phase = _SETTLED
        if self.heartbeat is not None:
            self.heartbeat.withdraw()
            self.heartbeat = None  # it refers to this lease: no work for the garbage collector
        keeper = self.keeper
        if keeper.held.get(self.key) is self:
            del keeper.held[self.key]
        if keeper.doubtful:
            keeper.doubtful.discard(self)

    # ---- company ----

    def join(self) -> trio.CancelScope:
        """A scope for somebody else who works on the job, perhaps in a task that ``scope`` does
        not reach: cancelled like it, and when the holder lets go of a job that is not settled."""
        scope = trio.CancelScope(deadline=self._deadline())
        if self._joined is None:
            self._joined = set()
        self._joined.add(scope)
        return scope

    def leave(self, scope: trio.CancelScope) -> None:
        """Give back what ``join`` gave."""
        if self._joined is not None:
            self._joined.discard(scope)

    # ---- the lease's time ----

    def granted(
        self, expires_at: records.Timestamp, asked: float, sent: float, received: float
    ) -> None:
        """Take in the end of the lease out of an answer to a wish for ``asked`` seconds."""
        self.check(received)
        if self.lost is not None:
            return
        usual = self.usual if asked == self.asked else None
        grant = self.keeper.clock.grant(epoch_seconds(expires_at), asked, sent, received, usual)
        self.take(Terms(grant, (expires_at, asked, sent, received)))

    def take(self, terms: Terms) -> None:
        """Take in what an answer granted."""
        self._answer = terms.answer
        self.expires_at, asked, _, _ = terms.answer
        if self.scope is None and asked == self.asked:
            # As in end_at, because there is one of these for each job.
            self.end = terms.end
            self.usual = terms.length
            self._margin = terms.margin
            due = self.due = terms.due
            self.scope = trio.CancelScope(deadline=due, shield=self._shield)
        else:
            self._at_most = inf
            self.end_at(terms.end, terms.length, own=asked == self.asked)
        if not terms.certain:
            self.keeper.doubt(self)

    def reread(self, asked_at: float, *, jumped: bool) -> bool:
        """Read the last answer again, now that the server's time is known better.

        ``asked_at`` is when the server was asked for it; ``jumped``, that it is another than
        was thought. Returns whether the lease's end is known for good.
        """
        now = trio.current_time()
        self.check(now)
        if self._answer is None or self.lost is not None:
            return True
        expires_at, asked, sent, received = self._answer
        later = received <= asked_at
        if not (later or jumped):
            return False  # the time may be that of a clock which was set before the answer came
        seemed = self.end
        grant = self.keeper.clock.reread(epoch_seconds(expires_at), asked, sent, received)
        self.end_at(grant.end, grant.length, own=asked == self.asked)
        if self.end < seemed - self._margin and self.heartbeat is not None:
            self.heartbeat.hurry(now)
        return later and grant.certain

    def end_at(self, end: float, length: float, *, own: bool) -> None:
        """Set the end; ``own`` if it is the answer to what the heartbeat asks for."""
        self.end = end = min(end, self._at_most)
        self._margin = margin = margin_of(length)
        if own:
            self.usual = length
        if self.scope is None:
            self.due = end - margin
            # Made late, because to set a scope's deadline costs more than to make one with it.
            self.scope = trio.CancelScope(deadline=self.due, shield=self._shield)
        else:
            self._set_deadline()

    def _deadline(self) -> float:
        # While an ack is on its way it has the lease's end as its own deadline.
        end = self.end - self._margin if self.phase is _HELD else inf
        return min(end, self.limit)

    def _set_deadline(self) -> None:
        deadline = self.due = self._deadline()
        assert self.scope is not None  # its end was set
        self.scope.deadline = deadline
        if self._joined:
            for scope in self._joined:
                scope.deadline = deadline

    # ---- the heartbeat ----

    def start_beats(self, now: float, spread: float) -> None:
        """Begin, with the first beat ``spread`` (0 to 1) of an interval from now."""
        self.heartbeat = Heartbeat(self.keeper, self)
        self.heartbeat.next(now, spread)

    def end_beats(self) -> None:
        """Beat once more and then never again, if there is a heartbeat."""
        if self.heartbeat is not None:
            self.heartbeat.ring(trio.current_time())
            self.heartbeat.stop()

    @property
    def extends_itself(self) -> bool:
        """Whether the holder is extending, or waits to: two extends in flight could overtake
        each other."""
        return self._turn is not None and self._turn.locked()

    def extend_request(self, seconds: float) -> records.ExtendRequest:
        """The message of an extend."""
        return records.ExtendRequest(
            self.job_id, self.attempt, convert.seconds_to_wire(seconds), self.worker_id
        )

    # ---- what the holder does ----

    async def extend(self, seconds: float) -> datetime:
        """Set the lease to ``seconds`` from now, as far as the server grants them.

        A checkpoint. A cancel may come after the server has extended the lease.

        Raises:
            LeaseError: the lease is lost, or the job is settled already.
            ClientError: the call failed. The server may have extended the lease all the
                same: it counts as the shorter one of the two from then on.
        """
        if self._turn is None:
            self._turn = trio.Lock()
        async with self._turn:
            if self.heartbeat is not None:
                await self.heartbeat.wait_answered()
            self._refuse_if_over()
            sent = trio.current_time()
            response = await self._extend(seconds, sent)
            if response.lease_expires_at is None:
                raise MalformedResponseError("lease_expires_at is not set")
            now = trio.current_time()
            self.granted(response.lease_expires_at, seconds, sent, now)
            if self.lost is not None:
                raise LeaseLostError(self.lost)
            if self.heartbeat is not None:
                self.heartbeat.next(now)
            return convert.lease_expiry_from_wire(response)

    async def _extend(self, seconds: float, sent: float) -> records.ExtendResponse:
        """Make the call. Until its answer is there the lease may be shorter already."""
        keeper = self.keeper
        end, at_most = self.end, self._at_most
        timeout = end - sent
        self._at_most = min(at_most, sent + self._least_granted(seconds))
        if self._at_most < end:
            self.end = self._at_most
            self._set_deadline()
            # So that a beat can still repair what an answer that never comes would break.
            timeout = (self.end - sent) / 2
        try:
            return await keeper.channel.unary(
                keeper.methods.extend, self.extend_request(seconds), timeout=timeout, urgent=True
            )
        except BaseException as error:
            if isinstance(error, CallError) and error.unprocessed:
                self._at_most = at_most
                self.end = min(end, at_most)
                self._set_deadline()
            if self.heartbeat is not None:
                self.heartbeat.next(trio.current_time())
            if not isinstance(error, CallError):
                raise
            if tells_loss(error) and self.phase is Phase.HELD:
                self.lose(error.message or error.status.name)
            raise keeper.to_error(error) from None

    def _least_granted(self, seconds: float) -> float:
        """What the server grants at least if it is asked for so many seconds."""
        least = min(seconds, self.keeper.clock.longest_lease)
        if self.usual is not None and self.usual < self.asked:
            least = min(least, self.usual)  # the job's queue has a limit of its own
        return least

    async def settle_and_wait(self, method: Any, request: Any) -> Any:
        """``settle``, and wait for the answer; a cancel ends the waiting, not the call.

        Raises:
            LeaseError: the lease is lost, or the job is settled already.
            ClientError: the call failed, and repeats did until the lease ended.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        self._refuse_if_over()
        outcome: list[tuple[Verdict, Any, CallError | None]] = []
        self.settled = trio.Event()
        self.phase = Phase.SETTLING
        self._set_deadline()  # the holder is in its scope, and waits as long as it takes
        self.settle(method, request, lambda _, *result: outcome.append(result))
        await self.settled.wait()
        [(verdict, response, error)] = outcome
        if verdict in (Verdict.DONE, Verdict.DONE_BEFORE):
            return response
        if error is None:
            raise LeaseLostError("the lease ended before the server answered")
        raise self.keeper.to_error(error)

    def _refuse_if_over(self) -> None:
        self.check(trio.current_time())
        if self.lost is not None:
            raise LeaseLostError(self.lost)
        if self.phase is not Phase.HELD:
            raise JobNotFoundError("the job was acked or nacked, or its hold has ended, already")
