"""Batches of jobs, straight from requests to bytes and from bytes to acks.

A producer's cost is here: records in between would double it. What is usual is written and
read at once, the rest goes by the records; the tests hold both ways against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from struct import Struct
from typing import TypeVar

from sepp_trio.errors import BatchResultCountMismatchError, BatchValidationError
from sepp_trio.types import EnqueueAck, EnqueueRequest, JobRejection, Primitive

from .. import records
from .._codec import decode, encode
from .._errors import encode_error
from .._primitives import SMALL, signed64, varint
from ._responses import atomic_acks_from_wire, batch_results_from_wire
from ._time import datetime_to_wire
from ._values import trace_context_to_wire

K = TypeVar("K", bound=Hashable)
R = TypeVar("R", bound=EnqueueAck | JobRejection)

_MOST = 4096
_LONGEST = 256


class _Remembered(dict[K, bytes]):
    """What is written for a key: made when first asked for, remembered within bounds."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[K], bytes]) -> None:
        self._make = make

    def __missing__(self, key: K) -> bytes:
        text = self._make(key)
        if len(text) <= _LONGEST:
            if len(self) >= _MOST:
                self.clear()
            self[key] = text
        return text


def _lengths(tag: bytes) -> _Remembered[int]:
    """A field's tag and its length."""
    return _Remembered(lambda length: tag + varint(length))


def _make_names(names: tuple[str, str]) -> bytes:
    queue, job_type = names
    return encode(records.EnqueueRequest(queue=queue, job_type=job_type))


# By the number of the field.
_length_1, _length_2 = _lengths(b"\n"), _lengths(b"\x12")
_length_3, _length_4 = _lengths(b"\x1a"), _lengths(b'"')
_length_8 = _lengths(b"B")
_names = _Remembered(_make_names)
_encodings = _Remembered[str](lambda encoding: encode(records.Payload(encoding=encoding)))
_pack_double = Struct("<d").pack


def encode_requests(requests: Iterable[EnqueueRequest]) -> bytes:
    """The EnqueueBatchRequest of some requests; a time before 1970 is sent as it is.

    Raises:
        EncodeError: a member holds what the message cannot.
    """
    parts: list[bytes] = []
    queue = job_type = label = None
    head = encoding = job_length = length = data_length = b""
    data_size = rest_size = -1
    for request in requests:
        # Names, label and sizes are mostly those of the job before.
        if request.queue is not queue or request.job_type is not job_type:
            queue, job_type = request.queue, request.job_type
            head = _names[queue, job_type]
            data_size = -1
        rest = b""
        if (
            request.priority is not None
            or request.max_attempts is not None
            or request.custom
            or request.trace_context is not None
            or request.scheduled_at is not None
        ):
            rest = _rest(request)
        elif request.idempotency_key is not None:
            text = request.idempotency_key.encode()
            rest = _length_4[len(text)] + text
        payload = request.payload
        if payload is None:
            parts += (_length_1[len(head) + len(rest)], head, rest)
            continue
        data = payload.data
        if payload.encoding is not label:
            label = payload.encoding
            encoding = _encodings[label]
            data_size = -1
        if len(data) != data_size or len(rest) != rest_size:
            data_size, rest_size = len(data), len(rest)
            data_length = _length_1[data_size]
            size = len(data_length) + data_size + len(encoding)
            length = _length_3[size]
            job_length = _length_1[size + len(head) + len(length) + rest_size]
        parts += (job_length, head, length, data_length, data, encoding, rest)
    return b"".join(parts)


def _rest(request: EnqueueRequest) -> bytes:
    """The fields behind the payload, in their order."""
    parts: list[bytes] = []
    if request.idempotency_key is not None:
        text = request.idempotency_key.encode()
        parts += (_length_4[len(text)], text)
    if request.priority is not None:
        parts += (b"(", SMALL[request.priority])
    if request.max_attempts is not None:
        parts += (b"0", varint(request.max_attempts))
    if request.trace_context is not None:
        context = trace_context_to_wire(request.trace_context)
        parts.append(encode(records.EnqueueRequest(trace_context=context)))
    for key, value in request.custom.items():
        # The map may have been changed since it was checked.
        try:
            text = key.encode()
            held = _primitive(value)
        except Exception as error:
            raise encode_error(
                "EnqueueRequest", f"custom[{key!r}], a PrimitiveValue", error
            ) from None
        size = len(text) + len(held) + len(_length_1[len(text)]) + len(_length_2[len(held)])
        parts += (_length_8[size], _length_1[len(text)], text, _length_2[len(held)], held)
    if request.scheduled_at is not None:
        time = datetime_to_wire(request.scheduled_at)
        parts.append(encode(records.EnqueueRequest(scheduled_at=time)))
    return b"".join(parts)


def _primitive(value: Primitive) -> bytes:
    """The PrimitiveValue of a custom map's value."""
    if isinstance(value, str):
        text = value.encode()
        return _length_1[len(text)] + text
    # A bool is an int to Python, not to the contract.
    if isinstance(value, bool):
        return b"\x20\x01" if value else b"\x20\x00"
    if isinstance(value, int):
        return b"\x18" + signed64(value)
    return b"\x11" + _pack_double(value)


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
