"""Batches of requests: what may be sent."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import EmptyBatchError
from ..types import EnqueueRequest


def checked_requests(requests: Iterable[EnqueueRequest]) -> list[EnqueueRequest]:
    """The requests of one batch as a list.

    Raises:
        TypeError: one is no request; names its index.
        EmptyBatchError: there is none.
    """
    if not isinstance(requests, Iterable):
        raise TypeError(f"requests must be an iterable, not {type(requests).__name__}")
    batch = list(requests)
    if not batch:
        raise EmptyBatchError
    if {*map(type, batch)} != {EnqueueRequest}:
        for index, request in enumerate(batch):
            checked_request(request, index)
    return batch


def checked_request(request: EnqueueRequest, index: int) -> EnqueueRequest:
    """Refuse what is no request; names its index."""
    if not isinstance(request, EnqueueRequest):
        kind = type(request).__name__
        raise TypeError(f"requests at index {index} must be an EnqueueRequest, not {kind}")
    return request
