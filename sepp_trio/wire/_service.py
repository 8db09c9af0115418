"""The table of the service's calls, from the generated base class and nowhere else."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from ._codec import codecs
from ._record import Record


class RpcSpec(NamedTuple):
    """One call: its path, and the records of its request and response."""

    route: str
    request: type[Record]
    response: type[Record]


@functools.cache
def rpcs() -> Mapping[str, RpcSpec]:
    """All calls by name (``"EnqueueBatch"`` …)."""
    return MappingProxyType({name: RpcSpec(*call) for name, call in codecs().RPCS.items()})
