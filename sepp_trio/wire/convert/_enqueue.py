"""Batches of jobs, straight from requests to bytes and from bytes to acks.

A producer's cost is here: records in between would double it. What is usual is written and
read at once, the rest goes by the records; the tests hold both ways against each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from sepp_trio.errors import BatchResultCountMismatchError, BatchValidationError
from sepp_trio.types import EnqueueAck, EnqueueRequest, JobRejection

from .. import records
from .._codec import decode, encode
from .._primitives import varint
from ._requests import enqueue_request_to_wire
from ._responses import atomic_acks_from_wire, batch_results_from_wire

R = TypeVar("R", bound=EnqueueAck | JobRejection)

_MOST = 4096
_LONGEST = 256


class _Lengths(dict[int, bytes]):
    """A field's tag and length by the length; those seen are remembered, within bounds."""

    __slots__ = ("_tag",)

    def __init__(self, tag: bytes) -> None:
        self._tag = tag

    def __missing__(self, length: int) -> bytes:
        if len(self) >= _MOST:
            self.clear()
        text = self[length] = self._tag + varint(length)
        return text


# Tags of the contract: EnqueueBatchRequest.jobs and Payload.data are both field 1.
_length_1, _length_3, _length_4 = _Lengths(b"\n"), _Lengths(b"\x1a"), _Lengths(b'"')


class _Names(dict[tuple[str, str], bytes]):
    """Queue and job type as fields of an EnqueueRequest."""

    __slots__ = ()

    def __missing__(self, names: tuple[str, str]) -> bytes:
        queue, job_type = names
        text = encode(records.EnqueueRequest(queue=queue, job_type=job_type))
        if len(text) <= _LONGEST:
            if len(self) >= _MOST:
                self.clear()
            self[names] = text
        return text


class _Encodings(dict[str, bytes]):
    """A payload's encoding as a field of it."""

    __slots__ = ()

    def __missing__(self, encoding: str) -> bytes:
        text = encode(records.Payload(encoding=encoding))
        if len(text) <= _LONGEST:
            if len(self) >= _MOST:
                self.clear()
            self[encoding] = text
        return text


_names, _encodings = _Names(), _Encodings()


def encode_requests(requests: Iterable[EnqueueRequest]) -> bytes:
    """The EnqueueBatchRequest of some requests; a time before 1970 is sent as it is.

    Raises:
        EncodeError: a member holds what the message cannot.
    """
    parts: list[bytes] = []
    queue = job_type = label = None
    head = encoding = b""
    for request in requests:
        # Mostly those of the job before.
        if request.queue is not queue or request.job_type is not job_type:
            queue, job_type = request.queue, request.job_type
            head = _names[queue, job_type]
        key = request.idempotency_key
        if (
            request.priority is not None
            or request.max_attempts is not None
            or request.custom
            or request.trace_context is not None
            or request.scheduled_at is not None
        ):
            rest = _rest(request)
        elif key is not None:
            text = key.encode()
            rest = _length_4[len(text)] + text
        else:
            rest = b""
        size = len(head) + len(rest)
        payload = request.payload
        if payload is None:
            parts += (_length_1[size], head, rest)
        else:
            data = payload.data
            if payload.encoding is not label:
                label = payload.encoding
                encoding = _encodings[label]
            data_length = _length_1[len(data)]
            payload_size = len(data_length) + len(data) + len(encoding)
            length = _length_3[payload_size]
            size += len(length) + payload_size
            parts += (_length_1[size], head, length, data_length, data, encoding, rest)
    return b"".join(parts)


def _rest(request: EnqueueRequest) -> bytes:
    """The fields behind the payload."""
    record = enqueue_request_to_wire(request)
    record.queue = record.job_type = ""
    record.payload = None
    return encode(record)


def decode_results(data: bytes) -> list[EnqueueAck | JobRejection]:
    """The results in an EnqueueBatchResponse.

    Raises:
        DecodeError: it is none.
        MalformedResponseError: a result is neither success nor rejection.
    """
    # For each job the result, in it the success, and in that the id.
    if (ids := _ids(data, 3)) is not None:
        return [*EnqueueAck._of_stored(ids)]
    return batch_results_from_wire(decode(records.EnqueueBatchResponse, data))


def decode_atomic(data: bytes) -> list[EnqueueAck] | BatchValidationError:
    """The acks in an EnqueueAtomicResponse, or why the server refused the batch.

    Raises:
        DecodeError: it is none.
        MalformedResponseError: neither success nor rejection.
    """
    # The success, in it for each job the response, and in that the id.
    for begin in range(2, min(5, len(data))):
        if data[:begin] == _length_1[len(data) - begin]:
            if (ids := _ids(data[begin:], 2)) is not None:
                return EnqueueAck._of_stored(ids)
            break
    return atomic_acks_from_wire(decode(records.EnqueueAtomicResponse, data))


def _ids(data: bytes, depth: int) -> list[str] | None:
    """The ids in messages so deep in each other with nothing beside, all of one short length.

    That is what an answer to jobs that were all stored looks like; None for any other.
    """
    head = bytes(data[: 2 * depth])
    size = head[-1] if len(head) == 2 * depth else 0
    if not 0 < size < 120 or not data.isascii():
        return None
    if head != b"".join(bytes((10, size + 2 * above)) for above in reversed(range(depth))):
        return None
    _, *ids = data.decode().split(head.decode())
    return ids if {*map(len, ids)} == {size} else None


def counted(results: list[R], expected: int) -> list[R]:
    """The results, if there is one for each job.

    Raises:
        BatchResultCountMismatchError: another number.
    """
    if len(results) != expected:
        raise BatchResultCountMismatchError(expected, len(results))
    return results
