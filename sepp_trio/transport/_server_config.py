"""What a server allows its peers."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Limits of a :class:`GrpcServer`; sizes are bytes, times are seconds.

    The defaults let honest clients do what the real server lets them do.
    """

    max_message_bytes: int = 16 * 1024 * 1024
    """Of one request message; a larger one is OUT_OF_RANGE."""
    max_connections: int = 10_000
    """Further ones are closed as soon as they are accepted."""
    max_calls: int = 4096
    """Per connection, announced as the stream limit; a call counts until its handler ended."""
    max_early_resets: int = 20
    """Calls that one read may both open and reset; more end the connection."""
    max_buffered_bytes: int = 64 * 1024 * 1024
    """Per connection, of requests: the call that goes over it is refused while it is not complete;
    once so much is at work, no more is read until some of it has been answered."""
    max_unsent_bytes: int = 4 * 1024 * 1024
    """Per connection, of answers that the peer does not take.  Beyond it calls wait:
    new ones to start, running ones in ``send_message`` and ``wait_room``."""
    max_held_bytes: int = 256 * 1024 * 1024
    """Of requests and answers of all connections together.  Beyond it those that have more than
    their share wait as if they had reached their own limits."""
    handshake_timeout: float = 10.0
    """For TLS and HTTP/2 each, from the accept on."""
    stall_timeout: float = 60.0
    """How long a peer may take nothing of what waits for it."""
    keepalive_interval: float = 30.0
    """Silence after which the peer is asked for a sign of life."""
    keepalive_timeout: float = 10.0
    """How long it may take to give one."""
    drain_timeout: float = 30.0
    """How long a graceful stop waits for open calls and slow peers."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 0 or (
                value == 0 and field.name not in ("max_early_resets", "drain_timeout")
            ):
                raise ValueError(f"{field.name} must be positive, not {value}")
        if self.max_message_bytes > 2**32 - 1:
            raise ValueError(f"max_message_bytes must fit 32 bits, not {self.max_message_bytes}")
