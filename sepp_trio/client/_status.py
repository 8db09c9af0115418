"""What a call's status means, as an error of ours.

Three readings of one table: a status means the same everywhere, except that calls about a
lease and reserves have two of their own.
"""

from __future__ import annotations

from grpclib.const import Status

from ..errors import (
    AttemptMismatchError,
    ClientClosedError,
    ClientError,
    InvalidRequestError,
    JobNotFoundError,
    LeaseError,
    MalformedResponseError,
    OverloadedError,
    ReserveError,
    ServerInternalError,
    TransportError,
    UnauthenticatedError,
    UnexpectedStatusError,
    UnknownQueuesError,
)
from ..transport import CallError, ChannelClosed

_GENERAL: dict[Status, type[ClientError]] = {
    Status.UNAVAILABLE: TransportError,
    Status.DEADLINE_EXCEEDED: TransportError,
    Status.ABORTED: TransportError,
    Status.CANCELLED: TransportError,
    Status.UNAUTHENTICATED: UnauthenticatedError,
    Status.PERMISSION_DENIED: UnauthenticatedError,
    Status.RESOURCE_EXHAUSTED: OverloadedError,
    Status.INVALID_ARGUMENT: InvalidRequestError,
    Status.INTERNAL: ServerInternalError,
    Status.DATA_LOSS: ServerInternalError,
    Status.UNKNOWN: ServerInternalError,
}


def client_error(error: CallError) -> ClientError:
    """The error of a call that is neither about a lease nor a reserve."""
    if isinstance(error, ChannelClosed):
        return ClientClosedError("the open_client block has ended")
    if error.origin == "local" and error.status in (Status.INTERNAL, Status.UNKNOWN):
        # No word of the server's: what it answered cannot be read.
        return MalformedResponseError(error.message or "the reply cannot be read")
    kind = _GENERAL.get(error.status)
    if kind is None:
        return UnexpectedStatusError(error.status.name, error.message or "")
    return kind(error.message or error.status.name)


def lease_error(error: CallError) -> LeaseError | ClientError:
    """The error of an ack, nack or extend."""
    if error.origin == "server":
        if error.status is Status.NOT_FOUND:
            return JobNotFoundError(error.message or "job not found")
        if error.status is Status.FAILED_PRECONDITION:
            return AttemptMismatchError(error.message or "attempt mismatch")
    return client_error(error)


def reserve_error(error: CallError) -> ReserveError | ClientError:
    """The error of a reserve."""
    if error.origin == "server" and error.status is Status.FAILED_PRECONDITION:
        return UnknownQueuesError(error.message or "undeclared queues")
    return client_error(error)
