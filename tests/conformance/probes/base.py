"""Section 14, frame by frame: statements about the transport that both servers must meet.

Each probe gets a server with the default configuration; one with `own_server` may stop it, one
with `config` gets another. A row of section 14 that is the real server's own choice, such as the
exact values of its SETTINGS, is not here but in unobserved.py.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.conformance.configs import DEFAULT
from tests.conformance.frames import Wire, message
from tests.conformance.wire import reserve_request, route

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.servers import Server

OK, CANCELLED, OUT_OF_RANGE, UNIMPLEMENTED, INTERNAL = "0", "1", "11", "12", "13"
PROTOCOL_ERROR, FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR, ENHANCE_YOUR_CALM = 1, 3, 6, 11
INFO = route("GetServerInfo")
RESERVE = route("Reserve")
EMPTY = message(b"")
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Probe:
    """One statement about the transport."""

    name: str
    function: Callable[[Server], None]
    own_server: bool
    config: str


PROBES: dict[str, Probe] = {}


def probe(
    *, own_server: bool = False, config: str = DEFAULT
) -> Callable[[Callable[[Server], None]], Callable[[Server], None]]:
    """Register a probe under its function's name."""

    def register(function: Callable[[Server], None]) -> Callable[[Server], None]:
        name = function.__name__
        assert name not in PROBES, f"two probes are called {name}"
        PROBES[name] = Probe(name, function, own_server, config)
        return function

    return register


def new_queue() -> str:
    """A queue name that nobody else uses."""
    return f"probe-{next(_numbers)}"


def parked(wait: float = 10.0, queue: str | None = None) -> bytes:
    """A reserve that waits in vain."""
    return message(reserve_request(queue or new_queue(), wait=wait).SerializeToString())


def works(wire: Wire) -> None:
    """The connection serves the next call."""
    assert wire.call(INFO, EMPTY).status == OK
