"""What is enqueued in a story, so that it reads well in print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from hypothesis import strategies as st

from sepp_trio.types import EnqueueRequest, Payload


class Request(EnqueueRequest):
    """A request whose ``repr`` leaves out what is as usual, and can be pasted into a test."""

    __slots__ = ()

    def __repr__(self) -> str:
        parts = [repr(self.queue), repr(self.job_type)]
        if self.payload is not None:
            parts.append(_shown(self.payload))
        if self.idempotency_key is not None:
            parts.append(f"idempotency_key={self.idempotency_key!r}")
        return f"EnqueueRequest({', '.join(parts)})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # Hypothesis would print all fields


def _shown(payload: Payload) -> str:
    with suppress(ValueError):
        value = payload.decode_json()
        if Payload.json(value) == payload:
            return f"Payload.json({value!r})"
    return repr(payload)


@st.composite
def requests(
    draw: st.DrawFn,
    queues: Sequence[str],
    payloads: Mapping[str, st.SearchStrategy[Payload | None]],
    keys: st.SearchStrategy[str | None],
) -> Request:
    """Jobs of one of the types, with a payload of that type."""
    job_type = draw(st.sampled_from(list(payloads)))
    return Request(
        draw(st.sampled_from(list(queues))),
        job_type,
        draw(payloads[job_type]),
        idempotency_key=draw(keys),
    )
