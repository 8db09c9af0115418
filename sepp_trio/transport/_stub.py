"""The channel as unmodified generated stubs want it: grpclib's ``request``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType


class Codec(Protocol):
    """Turns messages into bytes and back, as grpclib's codecs do."""

    def encode(self, message: Any, message_type: Any) -> bytes: ...

    def decode(self, data: bytes, message_type: Any) -> Any: ...


class MessageCodec:
    """For message classes that bring ``SerializeToString`` and ``FromString``."""

    def encode(self, message: Any, message_type: Any) -> bytes:
        """The message as bytes."""
        encoded: bytes = message.SerializeToString()
        return encoded

    def decode(self, data: bytes, message_type: Any) -> Any:
        """A message of this type."""
        return message_type.FromString(data)


class StubCall:
    """One call of a stub: an async context manager with the two methods it uses."""

    def __init__(self, perform: Callable[[Any], Awaitable[Any]]) -> None:
        self._perform = perform
        self._request: Any = None
        self._sent = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    async def send_message(self, message: Any, *, end: bool = False) -> None:
        """Keep the request; it leaves with :meth:`recv_message`.  No checkpoint."""
        self._request, self._sent = message, True

    async def recv_message(self) -> Any:
        """Make the call.  A checkpoint; cancelling it undoes the call.

        Raises:
            CallError: the call failed.
        """
        if not self._sent:
            raise RuntimeError("recv_message before send_message")
        return await self._perform(self._request)
