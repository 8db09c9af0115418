"""Which failures of which calls may be repeated, and the loop that repeats them.

The channel repeats what the server is known not to have seen by itself; this is about
the rest, where the caller's :class:`~sepp_trio.RetryPolicy` decides how often.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio
from grpclib.const import Status

from ..retry import RetryPolicy
from ..transport import CallError, Channel, Method

Req = TypeVar("Req")
Resp = TypeVar("Resp")

_PASSING = frozenset(
    {
        Status.UNAVAILABLE,
        Status.DEADLINE_EXCEEDED,
        Status.ABORTED,
        Status.RESOURCE_EXHAUSTED,
    }
)


def repeat_idempotent(error: CallError) -> bool:
    """For calls that may arrive twice: ack, nack and extend are fenced by the attempt,
    enqueues by their keys, and GetServerInfo changes nothing."""
    # What is decided here comes out the same again: the receive limit, a closed channel.
    # Our own deadline does not.
    if error.origin == "local" and error.status is not Status.DEADLINE_EXCEEDED:
        return False
    return error.status in _PASSING


def repeat_unambiguous(error: CallError) -> bool:
    """For calls that must not arrive twice: an enqueue with a job that has no key.

    Only where the server itself says that it did not do it. A lost connection has the
    status UNAVAILABLE too but proves nothing: the request may have been committed.
    """
    if error.origin == "server":
        return error.status in (Status.UNAVAILABLE, Status.RESOURCE_EXHAUSTED)
    return error.origin == "connection" and error.unprocessed


async def call(
    channel: Channel,
    method: Method[Req, Resp],
    request: Req,
    *,
    policy: RetryPolicy,
    may_repeat: Callable[[CallError], bool],
    timeout: float,
    urgent: bool = False,
) -> Resp:
    """One call, repeated as ``policy`` and ``may_repeat`` allow; ``timeout`` is per attempt.

    A checkpoint; a cancel abandons the call (which may have been done) or ends the pause.

    Raises:
        CallError: of the last attempt.
    """
    failed = 0
    while True:
        try:
            return await channel.unary(method, request, timeout=timeout, urgent=urgent)
        except CallError as error:
            failed += 1
            if failed >= policy.max_attempts or not may_repeat(error):
                raise
        await trio.sleep(policy.backoff(failed))
