"""Fault plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from .._faults import (
    PASSING,
    BlackHole,
    CallFault,
    Delay,
    DropConnection,
    Fail,
    Fault,
    FaultPlan,
    JumpServerClock,
    LoseLease,
    LoseReply,
    RestartServer,
)
from ._draw import check_bound

_NETWORK: Final = (Fail, LoseReply, Delay, LoseLease, DropConnection, BlackHole)
_RPCS: Final = ("Ack", "Nack", "Extend", "Reserve")


def fault_plans(
    *,
    kinds: Sequence[type[Fault]] = _NETWORK,
    rpcs: Sequence[str] = _RPCS,
    calls: int = 10,
    seconds: float = 60.0,
    longest: float = 20.0,
    min_size: int = 0,
    max_size: int = 8,
) -> st.SearchStrategy[FaultPlan]:
    """Plans of what goes wrong.

    Args:
        kinds: Which faults; by default those of the network and of leases. ``RestartServer`` and
            ``JumpServerClock`` need a server that can be restarted, and its clock set.
        rpcs: The kinds of calls that are hit.
        calls: Of each kind one of the first so many calls is hit.
        seconds: Faults at a moment come within so many seconds.
        longest: Seconds that a delay, a black hole or a restart lasts, at most.
        min_size: Faults, at least.
        max_size: Faults, at most.

    Raises:
        InvalidArgument: a kind is no fault, or a bound makes no sense.
    """
    check_bound(calls, "calls", 1)
    check_bound(max_size, "max_size", 0)
    check_bound(min_size, "min_size", 0, max_size)
    for name, value in (("seconds", seconds), ("longest", longest)):
        if not value >= 0.001:
            raise InvalidArgument(f"{name} must be at least 0.001, not {value!r}")
    if not kinds or not rpcs:
        raise InvalidArgument("kinds and rpcs must not be empty")
    nth = st.integers(1, calls)
    at = _times(0, seconds)
    lasting = _times(1, longest)
    faults: dict[type[Fault], Callable[[], st.SearchStrategy[Fault]]] = {
        kind: partial(call_faults, nth, kinds=(kind,), rpcs=rpcs, longest=longest)
        for kind in (Fail, LoseReply, Delay)
    }
    faults |= {
        LoseLease: lambda: st.builds(
            LoseLease, at, st.sampled_from(("expiry", "ack")), st.integers(0, 7)
        ),
        DropConnection: lambda: st.builds(DropConnection, at),
        BlackHole: lambda: st.builds(BlackHole, at, lasting),
        RestartServer: lambda: st.builds(RestartServer, at, lasting, st.booleans()),
        JumpServerClock: lambda: st.builds(
            JumpServerClock, at, st.sampled_from((0.5, 5.0, 60.0, 3600.0, -0.5, -5.0, -60.0))
        ),
    }
    for kind in kinds:
        if kind not in faults:
            raise InvalidArgument(f"kinds must be kinds of faults, not {kind!r}")
    drawn = st.one_of([faults[kind]() for kind in kinds])
    return st.lists(drawn, min_size=min_size, max_size=max_size).map(
        lambda found: FaultPlan(tuple(found))
    )


@st.composite
def call_faults(
    draw: st.DrawFn,
    nth: st.SearchStrategy[int],
    *,
    kinds: Sequence[type[Fault]] = (Fail, LoseReply, Delay),
    rpcs: Sequence[str] = _RPCS,
    longest: float = 20.0,
) -> CallFault:
    """Faults of single calls."""
    kind = draw(st.sampled_from(kinds))
    rpc, number = draw(st.sampled_from(rpcs)), draw(nth)
    if kind is Fail:
        return Fail(rpc, number, draw(st.sampled_from(PASSING)))
    if kind is LoseReply:
        return LoseReply(rpc, number, draw(st.booleans()))
    lasting = draw(_times(1, longest))
    if draw(st.booleans()):
        return Delay(rpc, number, request=lasting)
    return Delay(rpc, number, reply=lasting)


@st.composite
def _times(draw: st.DrawFn, least: int, most: float) -> float:
    """Seconds in whole milliseconds, ``least`` of them or more; whole seconds come first."""
    highest = int(most * 1000)
    # Drawn first, so that it is what shrinks first.
    part = draw(st.integers(0 if highest >= 1000 else least, min(999, highest)))
    seconds = draw(st.integers(int(part < least), (highest - part) // 1000))
    return seconds + part / 1000
