"""How large the answers of one batch may be, so that peers who do not read cannot fill the memory.

What is leased, or drained, is in memory until its answer has been written. So a peer that has not
taken its earlier answers gets no more (its calls wait), and large answers leave room for others.
"""

from __future__ import annotations

from typing import Protocol


class Peer(Protocol):
    """A connection, as the transport counts what is held for it."""

    def allowance(self, own: int, everyone: int) -> int:
        """Bytes of the next answer for it, 0 for none now, when ``own`` for it and ``everyone``
        for all are about to be made. Called in the committer's thread."""


class Taker(Protocol):
    """The call that gets what was taken out of the store."""

    @property
    def peer(self) -> Peer: ...

    def hold(self, size: int) -> None:
        """It has so many bytes in hand."""


class Promises:
    """What one batch has given out so far."""

    def __init__(self) -> None:
        self._to: dict[Peer, int] = {}
        self._in_all = 0

    def allowance(self, taker: Taker) -> int:
        """How many bytes this call may get; 0: none before its peer has taken something."""
        return taker.peer.allowance(self._to.get(taker.peer, 0), self._in_all)

    def add(self, taker: Taker, size: int) -> None:
        """The call gets so many."""
        self._to[taker.peer] = self._to.get(taker.peer, 0) + size
        self._in_all += size
