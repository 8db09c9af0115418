"""The published protobuf messages of sepp.v1, and how a call is made from them."""

from __future__ import annotations

from typing import Any

from google.protobuf.message_factory import GetMessageClass
from sepp.v1 import queue_pb2

# Generated at run time: nothing a type checker could see.
pb: Any = queue_pb2

SERVICE = "sepp.v1.QueueService"
_METHODS = pb.DESCRIPTOR.services_by_name["QueueService"].methods_by_name
RPCS = tuple(_METHODS)

# An id that no server ever gave out, in the form that the check wants.
NOBODY = "00000000-0000-4000-8000-000000000000"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def route(rpc: str) -> str:
    """The path of one RPC."""
    return f"/{SERVICE}/{rpc}"


def response_class(rpc: str) -> Any:
    """The message class that answers `rpc`."""
    return GetMessageClass(_METHODS[rpc].output_type)


def request_class(rpc: str) -> Any:
    """The message class that asks `rpc`."""
    return GetMessageClass(_METHODS[rpc].input_type)


def new_job(queue: str, job_type: str = "task", **fields: Any) -> Any:
    """An EnqueueRequest that passes every check unless a field spoils it."""
    return pb.EnqueueRequest(queue=queue, job_type=job_type, **fields)


def batch(*jobs: Any) -> Any:
    """An EnqueueBatchRequest."""
    return pb.EnqueueBatchRequest(jobs=jobs)


def reserve_request(*queues: str, lease: float = 30.0, wait: float = 0.0, **fields: Any) -> Any:
    """A ReserveRequest that passes every check unless a field spoils it."""
    request = pb.ReserveRequest(queues=queues, **fields)
    request.lease_duration.FromNanoseconds(round(lease * 1e9))
    if wait:
        request.wait_timeout.FromNanoseconds(round(wait * 1e9))
    return request


def milliseconds(timestamp: Any) -> int:
    """A Timestamp as milliseconds since the epoch."""
    return int(timestamp.seconds * 1000 + timestamp.nanos // 1_000_000)
