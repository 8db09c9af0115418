"""The calls over the wire: every one of them, who may make them, and what hostile values do."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from grpclib.exceptions import GRPCError
from trio.testing import MockClock

from sepp_trio.broker import ApiKey, BrokerConfig, QueueConfig, open_broker
from sepp_trio.errors import (
    AttemptMismatchError,
    BatchValidationError,
    JobNotFoundError,
    UnauthenticatedError,
)
from sepp_trio.transport import Method
from sepp_trio.types import EnqueueRequest, Payload, ReserveOptions, RetryDirective
from sepp_trio.wire import records, rpcs

from .calls import add, call, channel_to, reserve, status
from .helpers import config, from_wire, ms


async def test_all_calls_work_together(autojump_clock: MockClock) -> None:
    kept = config(storage={"dead_letter_retention_ms": 10**6})
    async with open_broker(config=kept) as broker, broker.open_client() as client:
        ack = await client.enqueue(EnqueueRequest("q", "t", Payload(b"x", "raw"), priority=3))
        with pytest.raises(BatchValidationError):
            await client.enqueue_atomic([EnqueueRequest("q", "t", Payload(b"x" * 2**21, "raw"))])
        (one,) = await client.enqueue_atomic([EnqueueRequest("q", "t")])
        jobs = await client.reserve(ReserveOptions(["q"], 30, max_jobs=2))
        assert [job.id for job in jobs] == [ack.job_id, one.job_id]
        await client.extend(jobs[0], 60)
        await trio.sleep(45)
        await client.ack(jobs[0])
        with pytest.raises(JobNotFoundError):
            await client.ack(jobs[0])
        (again,) = await client.reserve(ReserveOptions(["q"], 30))
        with pytest.raises(AttemptMismatchError):
            await client.nack(jobs[1], RetryDirective.DEFAULT)
        assert await client.nack(again, RetryDirective.DEAD_LETTER, reason="why")
        (letter,) = await client.drain_dead_letters()
        assert (letter.job_id, letter.last_reason) == (one.job_id, "why")
        assert broker.statistics().queues == {}


async def test_the_server_tells_its_limits(autojump_clock: MockClock) -> None:
    own = BrokerConfig.from_mapping(
        {
            "server": {"strict_queues": True},
            "limits": {"allowed_encodings": ["json"], "max_wait_timeout_ms": 1500},
            "storage": {"dead_letter_retention_ms": 1},
            "queues": [{"name": "q", "max_payload_bytes": 1}],
        }
    )
    async with open_broker(config=own) as broker, channel_to(broker) as channel:
        await trio.sleep(100)
        info = await call(channel, "GetServerInfo", records.GetServerInfoRequest())
        first = from_wire(info.server_time)
        assert info.server_version.endswith("+sepp-trio")
        info.server_version, info.server_time = "", None
        assert info == records.GetServerInfoResponse(
            supported_protocol_versions=["v1"],
            restricts_encodings=True,
            allowed_encodings=["json"],
            max_payload_bytes=2**20,
            max_custom_entries=64,
            max_custom_total_bytes=16384,
            max_custom_key_bytes=256,
            max_queue_name_bytes=512,
            max_job_type_bytes=256,
            max_idempotency_key_bytes=256,
            max_schedule_horizon=(2592000, 0),
            max_enqueue_batch=256,
            max_reserve_batch=256,
            max_reserve_queues=32,
            max_wait_timeout=(1, 500_000_000),
            max_lease_duration=(300, 0),
            strict_queues=True,
            dead_letter_retention_enabled=True,
        )
        await trio.sleep(5)
        info = await call(channel, "GetServerInfo", records.GetServerInfoRequest())
        # The broker's time is Trio's.
        assert from_wire(info.server_time) - first == 5000


# ---- API keys ----

KEYED = BrokerConfig(api_keys=(ApiKey("a", "k1"), ApiKey("b", "k2")))


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, "UNAUTHENTICATED"),
        ("Bearer k1", "OK"),
        ("Bearer k2", "OK"),
        ("bearer k1", "UNAUTHENTICATED"),
        ("Basic k1", "UNAUTHENTICATED"),
        ("k1", "UNAUTHENTICATED"),
        ("Bearer", "UNAUTHENTICATED"),
        ("Bearer k3", "UNAUTHENTICATED"),
        ("Bearer  k1", "UNAUTHENTICATED"),
        ("Bearer k1k2", "UNAUTHENTICATED"),
    ],
)
async def test_a_key_opens_all_calls(
    header: str | None, expected: str, autojump_clock: MockClock
) -> None:
    metadata = {} if header is None else {"authorization": header}
    requests: dict[str, Any] = {
        "GetServerInfo": records.GetServerInfoRequest(),
        "Reserve": records.ReserveRequest(["q"], lease_duration=(1, 0)),
        "DrainDeadLetters": records.DrainDeadLettersRequest(),
        "EnqueueBatch": records.EnqueueBatchRequest([records.EnqueueRequest("q", "t")]),
    }
    async with open_broker(config=KEYED) as broker, channel_to(broker, **metadata) as channel:
        for rpc, request in requests.items():
            assert await status(channel, rpc, request) == expected
        ack = await status(channel, "Ack", records.AckRequest("malformed"))
        assert ack == ("INVALID_ARGUMENT" if expected == "OK" else expected)
        unknown = Method(rpcs()["Ack"].route + "s", bytes, bytes)
        with pytest.raises(GRPCError) as caught:
            await channel.unary(unknown, b"", timeout=5)
        assert caught.value.status.name == ("UNIMPLEMENTED" if expected == "OK" else expected)


async def test_an_empty_list_of_keys_lets_nobody_in(autojump_clock: MockClock) -> None:
    nobody = BrokerConfig(api_keys=())
    async with open_broker(config=nobody) as broker, broker.open_client(api_key="k") as client:
        with pytest.raises(UnauthenticatedError):
            await client.get_server_info()


# ---- Hostile values ----


async def test_the_largest_numbers_are_cut_or_refused(autojump_clock: MockClock) -> None:
    """Trial 65: nothing of it reaches the database, or ends a connection."""
    most, least = 2**63 - 1, -(2**63)
    async with open_broker() as broker, channel_to(broker) as channel:
        await add(channel, max_attempts=2**32 - 1, scheduled_at=(least, -(2**31)))
        (one,) = await reserve(channel, max_jobs=2**32 - 1, lease=(most, 2**31 - 1))
        assert one.max_attempts == 100
        for rpc, request, expected in [
            ("Ack", records.AckRequest(one.id, 0), "INVALID_ARGUMENT"),
            ("Ack", records.AckRequest(one.id, 2**32 - 1), "FAILED_PRECONDITION"),
            (
                "Extend",
                records.ExtendRequest(one.id, 1, (most, 2**31 - 1)),
                "OK",
            ),
            ("Extend", records.ExtendRequest(one.id, 1, (least, 0)), "INVALID_ARGUMENT"),
            (
                "Nack",
                records.NackRequest(one.id, 1, retry=records.NackRetry(delay=(most, 2**31 - 1))),
                "OK",
            ),
            (
                "Reserve",
                records.ReserveRequest(["q"], (0, 0), (1, 0), max_jobs=0),
                "INVALID_ARGUMENT",
            ),
            ("DrainDeadLetters", records.DrainDeadLettersRequest(max=2**32 - 1), "OK"),
        ]:
            assert await status(channel, rpc, request) == expected, rpc
        bad = records.EnqueueBatchRequest(
            [
                records.EnqueueRequest("q", "t", priority=2**32 - 1),
                records.EnqueueRequest("q", "t", scheduled_at=(most, 2**31 - 1)),
            ]
        )
        results = (await call(channel, "EnqueueBatch", bad)).results
        assert results[0].rejection.invalid_request is not None
        assert results[1].rejection.scheduled_too_far.actual == (most, 2**31 - 1)
        # A number that is not one: -1 in a field without sign, ten bytes long.
        raw = Method(rpcs()["Ack"].route, bytes, bytes)
        negative = b"\x0a\x24" + one.id.encode() + b"\x10" + b"\xff" * 9 + b"\x01"
        with pytest.raises(GRPCError) as caught:
            await channel.unary(raw, negative, timeout=5)
        assert caught.value.status.name in ("FAILED_PRECONDITION", "INVALID_ARGUMENT", "NOT_FOUND")
        assert broker.statistics().committer.failed_batches == 0


async def test_settings_at_their_limits_do_not_break_time(autojump_clock: MockClock) -> None:
    most = 2**63 - 1
    huge = config(
        QueueConfig("q", max_lease_duration_ms=most),
        max_schedule_horizon_ms=most,
        storage={"dedup_window_ms": most, "dead_letter_retention_ms": most},
    )
    async with open_broker(config=huge) as broker, channel_to(broker) as channel:
        await add(channel, idempotency_key="k", max_attempts=1)
        (one,) = await reserve(channel, lease=(most, 0))
        assert await status(channel, "Nack", records.NackRequest(one.id, 1)) == "OK"
        await add(channel, "later", scheduled_at=(most, 0))
        assert await reserve(channel, "later") == []
        assert broker.statistics().committer.failed_batches == 0


async def test_bytes_that_are_no_request_are_refused(autojump_clock: MockClock) -> None:
    async with open_broker() as broker, channel_to(broker) as channel:
        raw = Method(rpcs()["EnqueueBatch"].route, bytes, bytes)
        for bad in (b"\x0a\xff", b"\x0a\x03\x0a\x01\xff"):
            with pytest.raises(GRPCError) as caught:
                await channel.unary(raw, bad, timeout=5)
            assert caught.value.status.name == "INTERNAL"
        assert await add(channel, scheduled_at=ms(5))
