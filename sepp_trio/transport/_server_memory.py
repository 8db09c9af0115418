"""How much memory the requests and answers of a server's peers may take.

One peer must not take all of it, and all of them together only so much. Beyond that nobody is
thrown out: a peer that has more than its share waits, or has what it began refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._server_config import ServerConfig


class Memory:
    """What is held for all connections of a server."""

    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.held = 0
        """Bytes of messages."""
        self.shares = 0
        """Connections."""
        self._waiting: dict[MemoryShare, None] = {}

    @property
    def left(self) -> int:
        """Bytes that may still be held; negative if it is too much already."""
        return self.config.max_held_bytes - self.held

    @property
    def share(self) -> int:
        """Bytes that each connection may hold when there is nothing left."""
        return self.config.max_held_bytes // self.shares

    def wait(self, share: MemoryShare) -> None:
        """Have the share told when there is memory left again."""
        self._waiting[share] = None

    def freed(self) -> None:
        """Something was given back."""
        if self._waiting and self.left >= 0:
            waiting, self._waiting = self._waiting, {}
            for share in waiting:
                share.on_room()


class MemoryShare:
    """What is held for one connection.

    ``requests``: those not complete, and those that wait to be begun. ``working``: those whose
    handlers have not made their answers. ``unsent``: answers that the peer has not taken, or that
    handlers have in hand. ``on_room`` is called when there is less of any of them, or of all.
    """

    __slots__ = ("_memory", "on_room", "requests", "unsent", "working")

    def __init__(self, memory: Memory, on_room: Callable[[], None]) -> None:
        self.requests = self.working = self.unsent = 0
        self.on_room = on_room
        self._memory = memory
        memory.shares += 1

    def close(self) -> None:
        """The connection is over, and all that it held is given back."""
        self._memory.shares -= 1

    def add(self, *, requests: int = 0, working: int = 0, unsent: int = 0) -> None:
        """Bytes that are held from now on; negative: no more."""
        self.requests += requests
        self.working += working
        self.unsent += unsent
        change = requests + working + unsent
        self._memory.held += change
        if change < 0:
            self.on_room()
            self._memory.freed()

    @property
    def greedy(self) -> bool:
        """All hold too much, and this one more than its share."""
        memory = self._memory
        if memory.left >= 0:
            return False
        return self.requests + self.working + self.unsent > memory.share

    @property
    def request_limit(self) -> int:
        """How much there may be of requests that are not complete or not begun."""
        memory = self._memory
        limit = memory.config.max_buffered_bytes
        if memory.left >= 0:
            return limit
        return max(0, min(limit, memory.share - self.working - self.unsent))

    @property
    def busy(self) -> bool:
        """No more requests are to be read until some have been answered."""
        if self.working > self._memory.config.max_buffered_bytes:
            return True
        return self.working > 0 and self._waits_for_others()

    @property
    def backlogged(self) -> bool:
        """Nothing more is to be made for a peer that does not take what there is."""
        if self.unsent > self._memory.config.max_unsent_bytes:
            return True
        return self.unsent > 0 and self._waits_for_others()

    def allowance(self, own: int, everyone: int) -> int:
        """How large an answer may be that is about to be made: 0: none now.

        ``own`` and ``everyone``: bytes of answers about to be made that are not yet held. Large
        answers leave room for others. Who has no more than its share may always have one piece, so
        that nobody starves: 1 means that. 0 only if :attr:`backlogged`, or soon to be. May be
        called from any thread.
        """
        unsent = self.unsent + own
        if unsent > self._memory.config.max_unsent_bytes:
            return 0
        left = self._memory.left - everyone
        if left > 1:
            return left // 2
        return 0 if self.unsent and self.greedy else 1

    def _waits_for_others(self) -> bool:
        if self.greedy:
            self._memory.wait(self)
            return True
        return False
