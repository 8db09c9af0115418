"""The demo's jobs: one per chunk, carrying the range of its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import HandlerError
from ...types import EnqueueRequest, Payload
from ._source import Chunk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

QUEUE = "airports"
JOB_TYPE = "import-chunk"
LEASE = 2.0
"""Seconds; short, so that a killed worker's jobs come back while somebody is watching."""


def jobs_for(chunks: Iterable[Chunk]) -> Iterator[EnqueueRequest]:
    """One request a chunk; the key makes enqueueing the same chunk twice harmless."""
    for chunk in chunks:
        yield EnqueueRequest(
            QUEUE,
            JOB_TYPE,
            Payload.json({"start": chunk.start, "stop": chunk.stop}),
            idempotency_key=f"{chunk.start}-{chunk.stop}",
        )


def chunk_in(payload: Payload | None) -> Chunk:
    """The inverse, for the handler; a job that says anything else is given up for good."""
    match payload.decode_json() if payload else None:
        case {"start": int(start), "stop": int(stop)} if 0 <= start < stop:
            return Chunk(start, stop)
    raise HandlerError.permanent("the payload is no range of rows")
