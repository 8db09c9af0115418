"""The standard health service."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
import trio
from grpclib.exceptions import GRPCError
from trio.testing import MockClock

from sepp_trio.broker import ApiKey, BrokerConfig, open_broker
from sepp_trio.broker.health import HealthCheckRequest
from sepp_trio.transport import Method

from .calls import channel_to

KEYED = BrokerConfig(api_keys=(ApiKey("a", "k1"),))


async def check(channel: Any, service: bytes) -> str | bytes:
    method: Method[bytes, bytes] = Method("/grpc.health.v1.Health/Check", bytes, bytes)
    try:
        answer: bytes = await channel.unary(method, service, timeout=5)
    except GRPCError as error:
        return error.status.name
    return answer


def named(service: str) -> bytes:
    return bytes((0x0A, len(service))) + service.encode()


async def test_health_is_told_without_a_key(autojump_clock: MockClock) -> None:
    async with open_broker(config=KEYED) as broker, channel_to(broker) as channel:
        assert await check(channel, b"") == b"\x08\x01"
        assert await check(channel, named("sepp.v1.QueueService")) == b"\x08\x01"
        assert await check(channel, named("grpc.health.v1.Health")) == "NOT_FOUND"
        assert await check(channel, b"\x0a\x05abc") == "INTERNAL"


@pytest.mark.parametrize(
    ("data", "service"),
    [
        (b"", ""),
        (named("a"), "a"),
        (b"\x10\x96\x01" + named("b") + b"\x1a\x01x", "b"),
        (b"\x11" + b"x" * 8 + b"\x1d" + b"x" * 4, ""),
        (b"\x0a\x80", None),
        (b"\x0a\x02\xff\xfe", None),
        (b"\x0b", None),
        (b"\xff" * 11, None),
        (b"\x11abc", None),
    ],
)
def test_a_health_request_is_read(data: bytes, service: str | None) -> None:
    if service is None:
        with pytest.raises(ValueError):
            HealthCheckRequest.decode(data)
    else:
        assert HealthCheckRequest.decode(data).service == service


async def test_a_watch_tells_once_and_ends_with_the_drain() -> None:
    """By grpcio, since our own channel makes unary calls only."""
    told: list[bytes] = []
    first = trio.Event()

    def watch(address: str) -> None:
        with grpc.insecure_channel(address) as channel:
            for answer in channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=10):
                told.append(answer)
                trio.from_thread.run_sync(first.set)

    async with open_broker() as broker, trio.open_nursery() as nursery:
        address: str = await nursery.start(broker.serve, "127.0.0.1:0")
        nursery.start_soon(trio.to_thread.run_sync, watch, address)
        with trio.fail_after(10):
            await first.wait()
        broker.start_drain()
    assert told == [b"\x08\x01"]
