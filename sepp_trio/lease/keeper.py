"""The keeper of beats: every lease that a client holds, one timer wheel, one clock."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import trio

from ..errors import SeppError
from ..transport import CallError, Channel, ChannelClosed, Method
from ..types import LeasedJob
from ..wire import convert, records
from ._held import HeldLease, epoch_seconds
from ._settlement import Settlement
from ._states import Beats
from ._wheel import Timer, TimerWheel
from .clock import ServerClock

logger = logging.getLogger("sepp_trio.lease")

_GOLDEN = 0.6180339887498949
"""Multiples of it, less their whole parts, lie evenly between 0 and 1 however many there are."""

_ASK_AGAIN = 0.5
"""Seconds after which a question for the server's time that brought nothing is asked again."""

_ASK_TIMEOUT = 2.0

_LOG_EVERY = 1.0


class LeaseMethods(Protocol):
    """The calls of the service that leases need."""

    @property
    def ack(self) -> Method[records.AckRequest, records.AckResponse]: ...
    @property
    def nack(self) -> Method[records.NackRequest, records.NackResponse]: ...
    @property
    def extend(self) -> Method[records.ExtendRequest, records.ExtendResponse]: ...
    @property
    def get_server_info(
        self,
    ) -> Method[records.GetServerInfoRequest, records.GetServerInfoResponse]: ...


class LeaseKeeper:
    """Knows the leases that are held through one channel and keeps them from ending.

    Args:
        channel, methods: What calls are made with.
        to_error: Makes the error that users see out of a failed ack, nack or extend.
        clean_reason: Makes a nack's reason fit to be sent.
    """

    def __init__(
        self,
        channel: Channel,
        methods: LeaseMethods,
        *,
        to_error: Callable[[CallError], SeppError],
        clean_reason: Callable[[str], str],
    ) -> None:
        self.channel = channel
        self.methods = methods
        self.beat = Method(methods.extend.route, bytes, methods.extend.decode)
        """An extend whose request is encoded already: a lease sends the same again and again."""
        self.to_error = to_error
        self.clean_reason = clean_reason
        self.clock = ServerClock()
        self.wheel = TimerWheel()
        self.beats = Beats()
        self.repeats: set[Settlement] = set()
        """Acks and nacks that failed and wait for their next try."""
        self.stopped = False
        self.held: dict[tuple[str, int], HeldLease] = {}
        """Every lease in keeping; they enter and leave it by themselves."""
        self.doubtful: set[HeldLease] = set()
        """Those whose end is to be read again when the server's time is known."""
        self._waiting: list[tuple[float, Callable[[], None]]] = []
        """Who waits for the server's time, since when."""
        self._asking = False
        self._looks_at = float("-inf")
        self._asked_at_once = False
        self._asks_again = Timer(self.ask_time)
        self._opened_at = float("-inf")
        self._opened_then = 0
        self._logged_at = float("-inf")

    @trio.lowlevel.enable_ki_protection
    async def run(self) -> None:
        """Send the beats, until cancelled; as long as it does not run, nothing is sent.

        Its end is that of the client: acks and nacks that wait for their repeat fail then.
        """
        try:
            await self.wheel.run()
        finally:
            self.stopped = True
            for settlement in [*self.repeats]:
                settlement.give_up()

    # ---- leases ----

    def open(
        self,
        job_id: str,
        attempt: int,
        worker_id: str | None = None,
        *,
        asked: float,
        interval: float | None = None,
        shield: bool = False,
        usual: float | None = None,
        count: Beats | None = None,
    ) -> HeldLease:
        """Take a lease into keeping; its holder sets its end, and may start its beats.

        Args:
            asked: Seconds of lease that each beat asks for, if there are any.
            interval: Seconds between beats; a third of what was granted if ``None``.
            shield: The scope lets no cancel from outside through.
            usual: Seconds that were granted last time for the same wish, if known.
            count: Where its beats are counted; with all others' of this keeper if not given.
        """
        return HeldLease(
            self,
            job_id,
            attempt,
            worker_id,
            asked,
            interval,
            shield,
            usual,
            count or self.beats,
        )

    def start_beats(self, lease: HeldLease, now: float) -> None:
        """Start a heartbeat. Of leases that begin together, the first beats are spread."""
        if now == self._opened_at:
            self._opened_then += 1
        else:
            self._opened_at = now
            self._opened_then = 0
        lease.start_beats(now, 1 - 0.9 * (self._opened_then * _GOLDEN % 1))

    def find(self, job: LeasedJob) -> HeldLease | None:
        """The lease of this delivery of this job, if it is held through this client."""
        return self.held.get((job.id, job.attempt))

    def __len__(self) -> int:
        """How many leases are held."""
        return len(self.held)

    def beat_failed(self, lease: HeldLease, why: object) -> None:
        """Say that a beat failed for a passing reason, in one line a second at most."""
        now = trio.current_time()
        if now - self._logged_at >= _LOG_EVERY:
            self._logged_at = now
            logger.warning(
                "job %s attempt %d: its lease could not be extended (%.3g s left): %s",
                lease.job_id,
                lease.attempt,
                lease.end - now,
                why,
            )

    # ---- the server's time ----

    def take_server_info(
        self, response: records.GetServerInfoResponse, sent: float, received: float
    ) -> None:
        """Learn from an answer to GetServerInfo, whoever asked."""
        if response.server_time is None:
            return
        if response.max_lease_duration is not None:
            longest = convert.seconds_from_wire(response.max_lease_duration)
            self.clock.longest_lease = longest if longest > 0 else float("inf")
        jumped = self.clock.observe(epoch_seconds(response.server_time), sent, received)
        leases = list(self.held.values() if jumped else self.doubtful)
        self.doubtful.clear()
        for lease in leases:
            if not lease.reread(sent, jumped=jumped):
                self.doubtful.add(lease)
        waiting, self._waiting = self._waiting, []
        for since, call in waiting:
            if since <= sent:
                call()
            else:
                self._waiting.append((since, call))

    def doubt(self, lease: HeldLease) -> None:
        """An answer about this lease does not fit what is known of the server's clock."""
        self.doubtful.add(lease)
        self.ask_time()

    def when_known(self, since: float, call: Callable[[], None]) -> None:
        """Call it when the server has told its time in answer to a question that was asked
        ``since`` or later; that may be never."""
        self._waiting.append((since, call))
        self.ask_time()

    def freshen(self, now: float, length: float) -> None:
        """Ask for the server's time if a lease of so many seconds could not be read well."""
        if now >= self._looks_at:  # not at each reserve of a busy worker
            self._looks_at = now + _ASK_AGAIN
            if self.clock.is_stale(now, length):
                self.ask_time()

    def ask_time(self) -> None:
        """Ask the server for its time, unless that is being done; nothing is waited for."""
        if self._asking:
            return
        sent = trio.current_time()

        def answered(
            response: records.GetServerInfoResponse | None, error: CallError | None
        ) -> None:
            self._asking = False
            now = trio.current_time()
            if response is not None:
                self.take_server_info(response, sent, now)
            if not (self.doubtful or self._waiting):
                return
            if self.clock.looked_at == now and not self._asked_at_once:
                self._asked_at_once = True
                self.ask_time()  # that was asked too early for them, or came too slowly
            else:
                self._asked_at_once = False
                self.wheel.start(self._asks_again, now + _ASK_AGAIN)

        with suppress(ChannelClosed):
            self.channel.start_unary(
                self.methods.get_server_info,
                records.GetServerInfoRequest(),
                answered,
                timeout=_ASK_TIMEOUT,
                urgent=True,
            )
            self._asking = True
