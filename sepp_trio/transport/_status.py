"""What an answer means: the message, or the error that a caller sees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpclib.const import Status
from grpclib.metadata import decode_grpc_message

from ._errors import CallError
from ._frames import Code

if TYPE_CHECKING:
    from ._blocks import Answer
    from ._client_stream import ClientStream

_FROM_HTTP = {
    400: Status.INTERNAL,
    401: Status.UNAUTHENTICATED,
    403: Status.PERMISSION_DENIED,
    404: Status.UNIMPLEMENTED,
    429: Status.UNAVAILABLE,
    502: Status.UNAVAILABLE,
    503: Status.UNAVAILABLE,
    504: Status.UNAVAILABLE,
}
_FROM_RESET: dict[int, Status] = {
    Code.REFUSED_STREAM: Status.UNAVAILABLE,
    Code.CANCEL: Status.CANCELLED,
    Code.ENHANCE_YOUR_CALM: Status.RESOURCE_EXHAUSTED,
    Code.INADEQUATE_SECURITY: Status.PERMISSION_DENIED,
}


def message_of(stream: ClientStream) -> bytes:
    """The message of a complete answer.

    Raises:
        CallError: the answer is an error, or none that gRPC knows.
    """
    head, last, body = stream.head, stream.trailers, stream.body
    assert head is not None
    status = None if last is None else last.grpc_status
    if status is None or last is None or (status == 0 and head.status != 200):
        raise _not_grpc(head)
    if status != 0:
        raise _from_status(status, last.grpc_message)
    if not body:
        raise _senseless("the answer has no message")
    if body[0] if isinstance(body, bytes) else body.flag:
        raise _senseless("the answer is compressed")
    if len(body) < 5 or len(body) < stream.expected:
        raise _senseless("the answer's message is cut off")
    if len(body) > stream.expected:
        raise _senseless("the answer holds more than one message")
    return body[5:] if isinstance(body, bytes) else body.message()


def from_reset(code: int, reason: str, *, unprocessed: bool) -> CallError:
    """The error of a stream that ended with an HTTP/2 error code."""
    status = _FROM_RESET.get(code, Status.INTERNAL)
    return CallError(status, reason, origin="connection", unprocessed=unprocessed)


def _senseless(text: str) -> CallError:
    return CallError(Status.INTERNAL, text, origin="local")


def _from_status(number: int, message: str) -> CallError:
    try:
        status = Status(number)
    except ValueError:
        text = "a grpc-status that is no number" if number < 0 else f"grpc-status {number}"
        return CallError(Status.UNKNOWN, f"the server sent {text}", origin="local")
    return CallError(status, decode_grpc_message(message) if message else "", origin="server")


def _not_grpc(head: Answer) -> CallError:
    content_type = next((value for name, value in head.fields if name == "content-type"), "none")
    if head.status != 200:
        text = f"the server answered with HTTP status {head.status} (content-type {content_type})"
        status = _FROM_HTTP.get(head.status or 0, Status.UNKNOWN)
        return CallError(status, text, origin="server")
    if not head.is_grpc:
        return CallError(
            Status.UNKNOWN, f"the answer is no gRPC (content-type {content_type})", origin="local"
        )
    return _senseless("the answer ended without a grpc-status")
