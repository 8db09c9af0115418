"""Calls on the wire, without the client on top: records in, records out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from grpclib.exceptions import GRPCError

from sepp_trio.broker import Broker
from sepp_trio.transport import Channel, Method, open_channel
from sepp_trio.wire import decode, decoder_of, encoder_of, records, rpcs

LEASE = (30, 0)


@asynccontextmanager
async def channel_to(broker: Broker, **metadata: str) -> AsyncIterator[Channel]:
    """A connection in memory."""
    async with open_channel(
        broker._connect, authority="localhost", metadata=list(metadata.items())
    ) as channel:
        yield channel


async def call(channel: Channel, rpc: str, request: Any, timeout: float | None = None) -> Any:
    """One call; its response."""
    spec = rpcs()[rpc]
    method: Method[Any, Any] = Method(
        spec.route, encoder_of(spec.request), decoder_of(spec.response)
    )
    return await channel.unary(method, request, timeout=timeout)


async def status(channel: Channel, rpc: str, request: Any) -> str:
    """The name of the status with which a call ends."""
    try:
        await call(channel, rpc, request)
    except GRPCError as error:
        return error.status.name
    return "OK"


async def add(channel: Channel, queue: str = "q", **values: Any) -> str:
    """Enqueue one job; its id."""
    one = records.EnqueueRequest(queue, "t", **values)
    answer = await call(channel, "EnqueueBatch", records.EnqueueBatchRequest([one]))
    job_id: str = answer.results[0].success.job_id
    return job_id


async def reserve(channel: Channel, *queues: str, wait: float = 0, **values: Any) -> Any:
    """Reserve; the jobs."""
    request = records.ReserveRequest(
        list(queues or ("q",)),
        (int(wait), int(wait % 1 * 1e9)),
        values.pop("lease", LEASE),
        **values,
    )
    answer = await call(channel, "Reserve", request)
    return [decode(records.Job, raw) for raw in answer.jobs]
