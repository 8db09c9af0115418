"""One call as the client's role in HTTP/2 has it, and what it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._sending import Stream

if TYPE_CHECKING:
    from ._blocks import Answer
    from ._body import Body
    from ._client_role import ClientConnection


class ClientStream(Stream):
    """A call that the client makes: subclass it and put it into a waiting queue.

    Exactly one of :meth:`replied`, :meth:`answered`, :meth:`broken` and :meth:`oversized`
    is called once the stream has begun, unless it is abandoned or the connection
    is lost before.
    """

    __slots__ = ("begun_at", "connection", "given_up", "head", "trailers")

    body: bytes | Body  # type: ignore[assignment]
    begun_at: float
    given_up: bool
    head: Answer | None
    trailers: Answer | None

    def __init__(self, message: bytes, *, urgent: bool = False) -> None:
        super().__init__(message, urgent=urgent)
        self.connection: ClientConnection | None = None
        """Where the call has begun; None while it waits."""

    def header_block(self, now: float) -> bytes | None:
        """The request's header block, asked for as it is about to leave.

        ``now`` is the connection's.  None: it is too late for this call, drop it.
        """
        raise NotImplementedError

    def replied(self, message: bytes) -> None:
        """The answer is complete, and this message is all there is to say about it."""
        raise NotImplementedError

    def answered(self) -> None:
        """The answer is complete: ``head``, ``body`` and ``trailers``.

        An answer of a single block is in both ``head`` and ``trailers``.
        """
        raise NotImplementedError

    def broken(self, code: int, reason: str, *, unprocessed: bool) -> None:
        """The stream ended without an answer, with this HTTP/2 error code.

        ``unprocessed``: the peer is known not to have taken the call up.
        """
        raise NotImplementedError

    def oversized(self, size: int) -> None:
        """The answer's message is larger than the receive limit; it was refused."""
        raise NotImplementedError
