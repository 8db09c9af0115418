"""What can go wrong with a call or a connection, whatever the service."""

from __future__ import annotations

from typing import Literal

from grpclib.const import Status
from grpclib.exceptions import GRPCError

Origin = Literal["server", "local", "connection"]


class CallError(GRPCError):
    """A call failed.

    Attributes:
        status: the gRPC status.
        message: what happened, for people; may be empty.
        origin: ``"server"``: the peer sent this status; ``"local"``: decided
            here (own deadline, receive limit, an answer that makes no sense);
            ``"connection"``: it was lost, refused the call, or could not be made.
        unprocessed: the peer is known never to have taken the call up.
    """

    message: str

    def __init__(
        self, status: Status, message: str, *, origin: Origin, unprocessed: bool = False
    ) -> None:
        super().__init__(status, message)
        self.origin: Origin = origin
        self.unprocessed = unprocessed

    def __str__(self) -> str:
        return f"{self.status.name}: {self.message}" if self.message else self.status.name


class ChannelClosed(CallError):
    """The channel was closed before the call was answered, or before it was made."""

    def __init__(self, *, unprocessed: bool) -> None:
        super().__init__(
            Status.UNAVAILABLE, "the channel is closed", origin="local", unprocessed=unprocessed
        )


class DialError(Exception):
    """No connection could be made; ``reason`` says why, for people."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
