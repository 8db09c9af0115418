"""What a worker has done and is doing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..types._value import Value

State = Literal["new", "running", "draining", "stopping", "stopped"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class WorkerStatistics(Value):
    """A worker at one moment. Jobs are counted once for each delivery.

    ``in_flight`` handlers run (or wait for the limit of their type), ``waiting`` jobs have no
    slot yet, ``reporting`` acks and nacks are on their way. ``overdue`` handlers go on
    although they were cancelled a second ago or more, the oldest for ``oldest_overdue``
    seconds. ``extends`` is the number of heartbeats, ``extends_failed`` of those that failed
    in passing. The counters: ``acked``; ``retried`` and ``dead_lettered`` by a nack;
    ``given_back`` at a stop; ``lost`` leases; ``unreported`` jobs whose ack or nack the
    server did not answer in time; ``settled_by_handler``, which acked or nacked through the
    client; each of those that were ``received`` ends in one of them, but for ``malformed`` jobs
    that cannot even be named. ``unhandled`` types and ``malformed`` jobs are counted on top.
    """

    state: State
    max_in_flight: int
    in_flight: int
    waiting: int
    reporting: int
    overdue: int
    oldest_overdue: float
    extends: int
    extends_failed: int
    reserves: int
    reserves_empty: int
    reserves_failed: int
    received: int
    acked: int
    retried: int
    dead_lettered: int
    given_back: int
    lost: int
    unreported: int
    settled_by_handler: int
    unhandled: int
    malformed: int


@dataclass(slots=True)
class Counters:
    """The counters of ``WorkerStatistics``."""

    reserves: int = 0
    reserves_empty: int = 0
    reserves_failed: int = 0
    received: int = 0
    acked: int = 0
    retried: int = 0
    dead_lettered: int = 0
    given_back: int = 0
    lost: int = 0
    unreported: int = 0
    settled_by_handler: int = 0
    unhandled: int = 0
    malformed: int = 0
