"""The table of the service's calls, from the generated base class and nowhere else."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from ._record import Record
from ._tables import generated, message_table


class RpcSpec(NamedTuple):
    """One call: its path, and the records of its request and response."""

    route: str
    request: type[Record]
    response: type[Record]


@functools.cache
def rpcs() -> Mapping[str, RpcSpec]:
    """All calls by name (``"EnqueueBatch"`` …).

    A function because the first call imports the generated module, which takes longer than
    importing the rest of the package.
    """
    messages, _ = generated()
    handlers: Mapping[str, Any] = messages.QueueServiceBase().__mapping__()
    return MappingProxyType(
        {
            route.rpartition("/")[2]: RpcSpec(
                route, _record_of(handler.request_type), _record_of(handler.reply_type)
            )
            for route, handler in handlers.items()
        }
    )


def _record_of(message: type) -> type[Record]:
    record = message_table(message.__name__).record
    assert record is not None  # only parts of messages have none
    return record
