"""Batches of requests: what may be sent, as a message, and whether it may arrive twice."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..errors import EmptyBatchError
from ..types import EnqueueRequest
from ..wire import convert, records


def checked_requests(requests: Iterable[EnqueueRequest]) -> list[EnqueueRequest]:
    """The requests of one batch as a list.

    Raises:
        TypeError: one is no request; names its index.
        EmptyBatchError: there is none.
    """
    if not isinstance(requests, Iterable):
        raise TypeError(f"requests must be an iterable, not {type(requests).__name__}")
    batch = [checked_request(request, index) for index, request in enumerate(requests)]
    if not batch:
        raise EmptyBatchError
    return batch


def checked_request(request: EnqueueRequest, index: int) -> EnqueueRequest:
    """Refuse what is no request; names its index."""
    if not isinstance(request, EnqueueRequest):
        kind = type(request).__name__
        raise TypeError(f"requests at index {index} must be an EnqueueRequest, not {kind}")
    return request


def batch_message(requests: Iterable[EnqueueRequest]) -> records.EnqueueBatchRequest:
    """The message of a batch."""
    return records.EnqueueBatchRequest([convert.enqueue_request_to_wire(job) for job in requests])


def all_keyed(requests: Sequence[EnqueueRequest]) -> bool:
    """Whether the batch may arrive twice: each key makes sure of its job."""
    return all(request.idempotency_key is not None for request in requests)
