"""One call as the server's role in HTTP/2 has it, and what can be wrong with its request."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from ._sending import Stream

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._blocks import Request


class RequestFault(enum.Enum):
    """Why a request cannot be handed to a handler."""

    HEADERS_TOO_LARGE = "the headers are larger than allowed"
    MESSAGE_TOO_LARGE = "the message is larger than allowed"
    NO_MESSAGE = "there is no message"
    COMPRESSED = "the message is compressed, or its flag is wrong"
    CUT_OFF = "the message does not end where it says"


class ServerStream(Stream):
    """A call that came in.

    ``request`` are its headers; ``payload`` the message, if ``fault`` is None.
    ``on_reset`` may be set: called once, within ``feed``, if the peer resets
    the call before its answer has been taken for writing.  ``on_written`` may
    be set: called within :meth:`ServerConnection.written`, when all of the
    answer has been written (or all of a part of it, see ``ServerConnection.send``).
    """

    __slots__ = (
        "deadline",
        "fault",
        "feed_number",
        "more",
        "on_reset",
        "on_written",
        "payload",
        "received",
        "request",
        "tail",
        "timeout",
    )

    fault: RequestFault | None
    payload: bytes

    def __init__(self, request: Request, timeout: str | None, feed_number: int) -> None:
        super().__init__(b"")
        self.tail = b""
        self.more = False
        self.request = request
        self.timeout = timeout
        self.deadline: float | None = None
        """For the driver's use."""
        self.feed_number = feed_number
        self.fault = None
        self.payload = b""
        self.received = 0
        self.on_reset: Callable[[], object] | None = None
        self.on_written: Callable[[], None] | None = None

    @property
    def incomplete(self) -> bool:
        """Whether more of the request is to come, and is wanted."""
        return not self.remote_ended and self.fault is None and self.open

    @property
    def open(self) -> bool:
        """Whether the peer still waits and no answer has been queued."""
        return self.offset == -1 and not self.local_ended


def check_messages(body: bytes | bytearray) -> RequestFault | None:
    """What is wrong with a request's body.

    The first of several whole messages is taken, as the real server does.
    """
    if not body:
        return RequestFault.NO_MESSAGE
    at, end = 0, len(body)
    while at < end:
        if end - at < 5:
            return RequestFault.CUT_OFF
        if body[at]:
            return RequestFault.COMPRESSED
        at += 5 + int.from_bytes(body[at + 1 : at + 5], "big")
    return None if at == end else RequestFault.CUT_OFF
