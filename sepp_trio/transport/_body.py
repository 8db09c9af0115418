"""A message that comes in several DATA frames, put together once and not frame by frame."""

from __future__ import annotations

_SMALL = 4096


class Body:
    """The bytes of an answer's DATA frames so far, with the five before the message."""

    __slots__ = ("_parts", "_size")

    def __init__(self, first: bytes | memoryview) -> None:
        """``first`` is the first piece, and not empty."""
        self._parts: list[bytes | bytearray | memoryview] = [first]
        self._size = len(first)

    def __len__(self) -> int:
        return self._size

    def append(self, payload: bytes | memoryview) -> None:
        """The next piece."""
        self._size += len(payload)
        last = self._parts[-1]
        if len(payload) >= _SMALL:
            self._parts.append(payload)
        elif isinstance(last, bytearray):
            # A peer that sends single bytes must not cost an object for each.
            last += payload
        else:
            self._parts.append(bytearray(payload))

    @property
    def flag(self) -> int:
        """The first byte: whether the message is compressed."""
        return self._parts[0][0]

    def head(self) -> bytes:
        """The five bytes before the message, or as many as are there."""
        return b"".join(self._parts)[:5] if len(self._parts[0]) < 5 else bytes(self._parts[0][:5])

    def message(self) -> bytes:
        """What follows the first five bytes."""
        first, *rest = self._parts
        if len(first) < 5:
            return b"".join(self._parts)[5:]
        return b"".join([memoryview(first)[5:], *rest])
