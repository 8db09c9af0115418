"""One call as the fault proxy sees it pass."""

from __future__ import annotations

import enum
from typing import Final, Literal, TypeAlias

from sepp_trio.transport._frames import DATA, PADDED

from ._faults import CallFault
from ._frame_reader import Frame

_PREFIX: Final = 5

CallEnd: TypeAlias = Literal["answered", "reset", "lost"]


class Way(enum.Enum):
    """What happens to the frames of one direction of a call."""

    OPEN = "passed on"
    HELD = "kept for later"
    SHUT = "thrown away"


class ProxiedCall:
    """A call: who asked for what, what came back, and what is done to it.

    ``request`` and ``reply`` are the bytes of the messages so far, without gRPC's prefix;
    ``status`` is the call's once its trailers were seen. ``end`` says how it ended: answered,
    taken back by the client (``"reset"``), or its reply was thrown away (``"lost"``), whichever
    came first; ``None`` if it has not.
    """

    __slots__ = (
        "_reply",
        "_request",
        "asked_at",
        "client_id",
        "end",
        "fault",
        "held",
        "held_reply",
        "number",
        "replying",
        "requesting",
        "rpc",
        "server_done",
        "server_id",
        "status",
    )

    def __init__(self, rpc: str, number: int, client_id: int, fault: CallFault | None) -> None:
        self.rpc = rpc
        self.number = number
        self.fault = fault
        self.client_id = client_id
        # Given when it is passed on: streams must begin in the order of their numbers.
        self.server_id: int | None = None
        self.requesting = Way.OPEN
        self.replying = Way.OPEN
        self.held: list[Frame] = []
        self.held_reply: list[Frame] = []
        self.server_done = False
        self.asked_at = 0.0
        self.status: int | None = None
        self.end: CallEnd | None = None
        self._request = bytearray()
        self._reply = bytearray()

    def __repr__(self) -> str:
        return f"<{self.rpc} no. {self.number}>"

    @property
    def request(self) -> bytes:
        """The request's message."""
        return bytes(self._request[_PREFIX:])

    @property
    def reply(self) -> bytes:
        """The reply's message."""
        return bytes(self._reply[_PREFIX:])

    def saw_request(self, frame: Frame) -> None:
        """Take in a frame from the client."""
        if frame.kind == DATA:
            self._request += _unpadded(frame)

    def saw_reply(self, frame: Frame) -> None:
        """Take in a frame from the server."""
        if frame.kind == DATA:
            self._reply += _unpadded(frame)


def _unpadded(frame: Frame) -> bytes:
    if not frame.flags & PADDED:
        return frame.payload
    return frame.payload[1 : len(frame.payload) - frame.payload[0]]
