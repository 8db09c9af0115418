"""Fault plans: what is to go wrong, and when. Values only; the proxy and the server act on them.

A plan can be read, compared, kept in a test and run again: it holds no state. Times are seconds
on Trio's clock since the plan was started, calls are counted per kind from 1, in the order in
which the client sent them.
"""

from __future__ import annotations

import enum
import random
from dataclasses import MISSING, dataclass, fields
from typing import Any, Final, Literal, TypeAlias

from grpclib.const import Status

from ..types import _checks
from ..wire import rpcs


class _Readable:
    """A ``repr`` that leaves out what is as usual, and can be pasted into a test."""

    def __repr__(self) -> str:
        parts = []
        for item in fields(self):  # type: ignore[arg-type]
            value = getattr(self, item.name)
            if value == item.default:
                continue
            text = str(value) if isinstance(value, enum.Enum) else repr(value)
            parts.append(text if item.default is MISSING else f"{item.name}={text}")
        return f"{type(self).__name__}({', '.join(parts)})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # Hypothesis and IPython would print all fields


def check_rpc(rpc: str) -> None:
    """Refuse a call that nobody makes: its fault would never happen, and its test pass for ever."""
    if rpc not in rpcs():
        raise ValueError(f"rpc must be one of {', '.join(rpcs())}, not {rpc!r}")


class _OfCalls(_Readable):
    rpc: str
    nth: int
    times: int | None

    def __post_init__(self) -> None:
        check_rpc(self.rpc)
        _checks.integer(self.nth, "nth", 1)
        if self.times is not None:
            _checks.integer(self.times, "times", 1)


class _Timed(_Readable):
    at: float

    def __post_init__(self) -> None:
        _keep_seconds(self, "at")


def _keep_seconds(fault: object, field: str) -> None:
    value = _checks.seconds(getattr(fault, field), field, zero=True)
    object.__setattr__(fault, field, value)


# ---- Faults of calls: the ``nth`` of a kind, or ``times`` so many from it on (None: all) ----


@dataclass(frozen=True, repr=False)
class Fail(_OfCalls):
    """The ``nth`` call of a kind ends with this status; the server never sees it."""

    rpc: str
    nth: int = 1
    status: Status = Status.UNAVAILABLE
    times: int | None = 1


@dataclass(frozen=True, repr=False)
class Delay(_OfCalls):
    """The ``nth`` call of a kind is held up: its request, its reply, or both; seconds."""

    rpc: str
    nth: int = 1
    request: float = 0.0
    reply: float = 0.0
    times: int | None = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _keep_seconds(self, "request")
        _keep_seconds(self, "reply")


@dataclass(frozen=True, repr=False)
class LoseReply(_OfCalls):
    """The server applies the ``nth`` call of a kind, and its reply is lost: the connection goes
    down with it, or (``silent``) it just never comes."""

    rpc: str
    nth: int = 1
    silent: bool = False
    times: int | None = 1


@dataclass(frozen=True, repr=False)
class Answer(_OfCalls):
    """The ``nth`` call of a kind is answered with this message, whatever it may say: bytes, as
    on the wire. The server never sees it."""

    rpc: str
    nth: int = 1
    message: bytes = b""
    times: int | None = 1


# ---- Faults at a moment ----


@dataclass(frozen=True, repr=False)
class DropConnection(_Timed):
    """All connections of the client break."""

    at: float


@dataclass(frozen=True, repr=False)
class BlackHole(_Timed):
    """For so many seconds no byte passes, in either direction, though nothing is closed: bytes
    wait, and new connections hang."""

    at: float
    seconds: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _keep_seconds(self, "seconds")


@dataclass(frozen=True, repr=False)
class LoseLease(_Timed):
    """A lease that the client holds is ended behind its back: it runs out at once, or somebody
    else acks the job. ``pick`` says which one, counted by age and around."""

    at: float
    by: Literal["expiry", "ack"] = "expiry"
    pick: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.by not in ("expiry", "ack"):
            raise ValueError(f"by must be 'expiry' or 'ack', not {self.by!r}")


@dataclass(frozen=True, repr=False)
class RestartServer(_Timed):
    """The server stops, with a goodbye (``drain``) or without, and is back ``down`` seconds
    later with what it had stored."""

    at: float
    down: float = 1.0
    drain: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _keep_seconds(self, "down")


@dataclass(frozen=True, repr=False)
class JumpServerClock(_Timed):
    """Somebody sets the server's clock, this many seconds ahead (or back, if negative)."""

    at: float
    seconds: float


CallFault: TypeAlias = Fail | Delay | LoseReply | Answer
TimedFault: TypeAlias = DropConnection | BlackHole | LoseLease | RestartServer | JumpServerClock
Fault: TypeAlias = CallFault | TimedFault


@dataclass(frozen=True)
class FaultPlan:
    """Faults to come, in any order; of two for the same call the first counts."""

    faults: tuple[Fault, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.faults, (tuple, list)):
            raise TypeError(f"faults must be a tuple of faults, not {type(self.faults).__name__}")
        for fault in self.faults:
            if not isinstance(fault, Fault):
                raise TypeError(f"faults must be a tuple of faults, but one is {fault!r}")
        object.__setattr__(self, "faults", tuple(self.faults))

    def __repr__(self) -> str:
        lines = "".join(f"\n    {fault!r}," for fault in self.faults)
        return f"FaultPlan(({lines}\n))" if lines else "FaultPlan()"

    @property
    def timed(self) -> list[TimedFault]:
        """Those at a moment, in their order."""
        return sorted(
            (fault for fault in self.faults if not isinstance(fault, CallFault)),
            key=lambda fault: fault.at,
        )

    @property
    def of_calls(self) -> list[CallFault]:
        """Those of calls."""
        return [fault for fault in self.faults if isinstance(fault, CallFault)]


_RPCS = ("Reserve", "Ack", "Nack", "Extend", "GetServerInfo")
PASSING: Final = (
    Status.UNAVAILABLE,
    Status.INTERNAL,
    Status.UNKNOWN,
    Status.ABORTED,
    Status.RESOURCE_EXHAUSTED,
    Status.DEADLINE_EXCEEDED,
    Status.CANCELLED,
)
"""Statuses that a network or a proxy makes up, and that go away again."""


def random_network_plan(
    seed: int, *, seconds: float, every: float, calls: int = 2000, one_in: float = 200
) -> FaultPlan:
    """A plan for the way to the server, the same for the same seed.

    ``every`` so many seconds something happens to the connections or a lease, and ``one_in`` so
    many calls of each kind is hit, up to the ``calls``-th.
    """
    dice = random.Random(f"network {seed}")
    faults: list[Fault] = []
    at = dice.expovariate(1 / every)
    while at < seconds:
        faults.append(_random_network_fault(dice, round(at, 3)))
        at += dice.expovariate(1 / every)
    for rpc in _RPCS:
        nth = 1 + int(dice.expovariate(1 / one_in))
        while nth <= calls:
            faults.append(_random_call_fault(dice, rpc, nth))
            nth += 1 + int(dice.expovariate(1 / one_in))
    return FaultPlan(tuple(faults))


def _random_network_fault(dice: random.Random, at: float) -> Fault:
    kind = dice.random()
    if kind < 0.4:
        return DropConnection(at)
    if kind < 0.6:
        return BlackHole(at, _lasting(dice))
    return LoseLease(at, dice.choice(("expiry", "ack")), dice.randrange(8))


def _random_call_fault(dice: random.Random, rpc: str, nth: int) -> CallFault:
    kind = dice.random()
    if kind < 0.3:
        return Fail(rpc, nth, dice.choice(PASSING))
    if kind < 0.5:
        return Delay(rpc, nth, request=_lasting(dice))
    if kind < 0.7:
        return Delay(rpc, nth, reply=_lasting(dice))
    return LoseReply(rpc, nth, silent=dice.random() < 0.4)


def random_server_plan(seed: int, *, seconds: float, every: float, jumps: bool = True) -> FaultPlan:
    """A plan for the server itself: restarts, and jumps of its clock."""
    dice = random.Random(f"server {seed}")
    faults: list[Fault] = []
    at = dice.expovariate(1 / every)
    while at < seconds:
        if jumps and dice.random() < 0.3:
            size = dice.choice((0.5, 5.0, 60.0, 3600.0)) * dice.choice((1, -1))
            faults.append(JumpServerClock(round(at, 3), size))
        else:
            faults.append(RestartServer(round(at, 3), _lasting(dice), dice.random() < 0.5))
        at += dice.expovariate(1 / every)
    return FaultPlan(tuple(faults))


def _lasting(dice: random.Random) -> float:
    """Mostly short, sometimes longer than any lease."""
    return round(min(dice.expovariate(1) * dice.choice((0.05, 0.5, 3.0, 12.0)), 60.0) + 0.001, 3)
