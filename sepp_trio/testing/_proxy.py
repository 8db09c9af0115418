"""The fault proxy: a client's way to the server, on which a plan happens."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from math import inf
from typing import NamedTuple, Protocol, TypeAlias

import trio

from sepp_trio.broker import Broker
from sepp_trio.client import open_client
from sepp_trio.errors import SeppError
from sepp_trio.wire import DecodeError, decoder_of, records

from ._connection import ProxiedConnection
from ._faults import (
    BlackHole,
    CallFault,
    Delay,
    DropConnection,
    Fault,
    FaultPlan,
    JumpServerClock,
    LoseLease,
    RestartServer,
    TimedFault,
)
from ._proxied import ProxiedCall

Dial: TypeAlias = Callable[[], Awaitable[trio.abc.Stream]]

THIEF = "fault plan"
"""The worker id of those who end a lease behind its holder's back."""

_THEFT_TIMEOUT = 5.0


class ServerControls(Protocol):
    """What a plan needs to act on the server itself."""

    async def restart(self, down: float, *, drain: bool) -> None:
        """Stop it, and have it back after ``down`` seconds."""

    async def jump_clock(self, seconds: float) -> None:
        """Set its clock ahead, or back."""


class Observer(Protocol):
    """Is told of each call that passes; must not raise."""

    def asked(self, call: ProxiedCall) -> None:
        """The client has sent the whole request."""

    def answered(self, call: ProxiedCall) -> None:
        """The whole reply was written to the client."""

    def reset(self, call: ProxiedCall) -> None:
        """The client has taken the call back."""

    def lost(self, call: ProxiedCall) -> None:
        """The server has answered, and the plan has lost its reply."""


@dataclass(frozen=True)
class Happening:
    """A fault that came to pass: when, for how long, and (if that is not plain) to what."""

    at: float
    until: float
    fault: Fault
    effect: str = ""


class _Stolen(NamedTuple):
    """As much of a job as ``ack`` and ``extend`` take."""

    id: str
    attempt: int
    worker_id: str


class FaultProxy:
    """Between one client and the server; made by :func:`open_fault_proxy`.

    ``happened`` lists what was done so far. Give :meth:`connect` to ``open_client``, or serve
    :meth:`serve_stream` on a listener for clients elsewhere.
    """

    def __init__(
        self,
        dial: Dial,
        plan: FaultPlan,
        nursery: trio.Nursery,
        *,
        server: ServerControls | None,
        observer: Observer | None,
    ) -> None:
        self.plan = plan
        self.happened: list[Happening] = []
        self.leases: dict[tuple[str, int], None] = {}
        """Job and attempt of what the client holds."""
        self._dial = dial
        self._nursery = nursery
        self._server = server
        self._observer = observer
        self._counts: dict[str, int] = {}
        # By kind of call: the numbers of the first and the last that the fault is for.
        self._of_calls: dict[str, list[tuple[int, float, CallFault]]] = {}
        self._connections: dict[ProxiedConnection, None] = {}
        self._holes = 0
        self._no_hole = trio.Event()
        self.inject(*plan.faults)

    async def connect(self) -> trio.abc.Stream:
        """A new connection to the server, by way of the plan.

        A checkpoint. Raises what dialling raises.
        """
        await self.passable()
        server = await self._dial()
        from trio.testing import memory_stream_pair  # here, for it imports pytest if it is there

        ours, theirs = memory_stream_pair()
        self._nursery.start_soon(self._run, ours, server)
        return theirs

    async def serve_stream(self, stream: trio.abc.Stream) -> None:
        """Serve a client that has connected; for ``trio.serve_listeners``."""
        try:
            await self.passable()
            server = await self._dial()
        except OSError:
            await trio.aclose_forcefully(stream)
            return
        await self._run(stream, server)

    async def _run(self, client: trio.abc.Stream, server: trio.abc.Stream) -> None:
        connection = ProxiedConnection(self, client, server)
        self._connections[connection] = None
        try:
            await connection.run()
        finally:
            del self._connections[connection]

    def drop_connections(self) -> None:
        """Break all connections, for both sides."""
        for connection in list(self._connections):
            connection.drop()

    # ---- what connections ask and tell ----

    async def passable(self) -> None:
        """Wait while there is a black hole."""
        while self._holes:
            await self._no_hole.wait()

    def begin(self, rpc: str, number: int) -> ProxiedCall:
        """A call begins on stream ``number``."""
        count = self._counts[rpc] = self._counts.get(rpc, 0) + 1
        fault = None
        for first, last, candidate in self._of_calls.get(rpc, ()):
            if first <= count <= last:
                fault = candidate
                break
        if fault is not None:
            self._note(fault, fault.request + fault.reply if isinstance(fault, Delay) else 0.0)
        call = ProxiedCall(rpc, count, number, fault)
        call.asked_at = trio.current_time()
        return call

    def asked(self, call: ProxiedCall) -> None:
        """The client has sent the whole request."""
        if self._observer is not None:
            self._observer.asked(call)

    def answered(self, call: ProxiedCall) -> None:
        """The reply has been written to the client."""
        call.end = call.end or "answered"
        self._watch_leases(call)
        if self._observer is not None:
            self._observer.answered(call)

    def reset(self, call: ProxiedCall) -> None:
        """The client has taken the call back."""
        call.end = call.end or "reset"
        if self._observer is not None:
            self._observer.reset(call)

    def lost(self, call: ProxiedCall) -> None:
        """The whole reply has been thrown away."""
        call.end = call.end or "lost"
        if call.rpc != "Reserve":
            self._watch_leases(call)
        if self._observer is not None:
            self._observer.lost(call)

    def _watch_leases(self, call: ProxiedCall) -> None:
        try:
            if call.rpc == "Reserve" and call.status == 0:
                for raw in decoder_of(records.ReserveResponse)(call.reply).jobs:
                    job = decoder_of(records.Job)(raw)
                    self.leases[job.id, job.attempt] = None
            elif call.rpc in ("Ack", "Nack"):
                decode: Callable[[bytes], records.AckRequest | records.NackRequest]
                decode = decoder_of(
                    records.AckRequest if call.rpc == "Ack" else records.NackRequest
                )
                done = decode(call.request)
                self.leases.pop((done.job_id, done.attempt), None)
        except DecodeError:
            pass

    # ---- the plan ----

    def _note(self, fault: Fault, seconds: float = 0.0, effect: str = "") -> None:
        now = trio.current_time()
        self.happened.append(Happening(now, now + seconds, fault, effect))

    def inject(self, *faults: Fault) -> None:
        """Let these happen as well, from now on: ``at`` counts from now, ``nth`` from the next
        call of the kind. For a call that an older fault is for too, the new one counts.

        Not a checkpoint: a fault at 0 happens at the next one.

        Raises:
            ValueError: a fault is of the server, and ``server`` was not given.
        """
        plan = FaultPlan(faults)
        _check_server(plan, self._server)
        self._expect(plan.of_calls)
        self._nursery.start_soon(self._run_plan, plan, trio.current_time())

    def relent(self) -> None:
        """Spare calls from now on. What is going on already goes on."""
        self._of_calls.clear()

    def _expect(self, faults: list[CallFault]) -> None:
        for fault in reversed(faults):
            first = self._counts.get(fault.rpc, 0) + fault.nth
            last = inf if fault.times is None else first + fault.times - 1
            self._of_calls.setdefault(fault.rpc, []).insert(0, (first, last, fault))

    async def _run_plan(self, plan: FaultPlan, began: float) -> None:
        for fault in plan.timed:
            await trio.sleep_until(began + fault.at)
            self._nursery.start_soon(self._act, fault)

    async def _act(self, fault: TimedFault) -> None:
        match fault:
            case DropConnection():
                self._note(fault, effect=f"{len(self._connections)} connections")
                self.drop_connections()
            case BlackHole(_, seconds):
                self._note(fault, seconds)
                await self._swallow(seconds)
            case LoseLease():
                await self._steal(fault)
            case RestartServer(_, down, drain):
                assert self._server is not None  # open_fault_proxy has seen to it
                self._note(fault, down)
                await self._server.restart(down, drain=drain)
            case JumpServerClock(_, seconds):
                assert self._server is not None
                self._note(fault)
                await self._server.jump_clock(seconds)

    async def _swallow(self, seconds: float) -> None:
        if not self._holes:
            self._no_hole = trio.Event()
        self._holes += 1
        await trio.sleep(seconds)
        self._holes -= 1
        if not self._holes:
            self._no_hole.set()

    async def _steal(self, fault: LoseLease) -> None:
        if not self.leases:
            self._note(fault, effect="no lease was held")
            return
        job_id, attempt = list(self.leases)[fault.pick % len(self.leases)]
        job = _Stolen(job_id, attempt, THIEF)
        effect = f"job {job_id} attempt {attempt}"
        try:
            with trio.move_on_after(_THEFT_TIMEOUT) as scope:
                async with open_client(self._dial) as thief:
                    if fault.by == "ack":
                        await thief.ack(job)
                    else:
                        await thief.extend(job, 0.001)
        except SeppError as error:
            effect = f"{effect}: {error}"
        if scope.cancelled_caught:
            effect = f"{effect}: no answer"
        self.leases.pop((job_id, attempt), None)
        self._note(fault, effect=effect)


@asynccontextmanager
async def open_fault_proxy(
    target: Broker | Dial,
    plan: FaultPlan | None = None,
    *,
    server: ServerControls | None = None,
    observer: Observer | None = None,
) -> AsyncIterator[FaultProxy]:
    """Start a plan on the way to a server; ends its connections with the block.

    Args:
        target: The embedded server, or what connects to the server.
        plan: What is to go wrong, nothing if not given; its clock starts now.
        server: What restarts and jumps act on; a plan with such faults needs it.
        observer: Is told of the calls that pass.

    Raises:
        ValueError: the plan has faults of the server, and ``server`` is not given.
    """
    plan = plan or FaultPlan()
    _check_server(plan, server)
    dial = target._connect if isinstance(target, Broker) else target
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        proxy = FaultProxy(dial, plan, nursery, server=server, observer=observer)
        try:
            yield proxy
        except BaseException as error:
            failure = error  # raised below: the nursery would make a group of it
        nursery.cancel_scope.cancel(reason="the fault proxy's block has ended")
    if failure is not None:
        raise failure


def _check_server(plan: FaultPlan, server: ServerControls | None) -> None:
    if server is None:
        for fault in plan.timed:
            if isinstance(fault, RestartServer | JumpServerClock):
                raise ValueError(f"server must be given for {fault!r}")
