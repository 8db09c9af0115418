"""Which failures of which calls may be repeated.

The channel repeats what the server is known not to have seen by itself; this is about
the rest, where the caller's :class:`~sepp_trio.RetryPolicy` decides how often.
"""

from __future__ import annotations

from collections.abc import Sequence

from grpclib.const import Status

from ..transport import CallError
from ..types import EnqueueRequest

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


def repeat_batch(requests: Sequence[EnqueueRequest], error: CallError) -> bool:
    """For a batch, which may arrive twice if each key makes sure of its job."""
    if all(request.idempotency_key is not None for request in requests):
        return repeat_idempotent(error)
    return repeat_unambiguous(error)
