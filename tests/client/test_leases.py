"""Ack, nack, extend and hold: what is sent, given and raised."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from grpclib.const import Status
from grpclib.exceptions import GRPCError

from sepp_trio import errors
from sepp_trio.client import SeppClient
from sepp_trio.types import ReserveOptions, RetryDirective
from sepp_trio.wire import records
from tests.client.fake import JOB_ID, FakeServer, job_record, reserved, server_time


@dataclass
class Named:
    """The least that names a lease."""

    id: str
    attempt: int


JOB = Named(JOB_ID, 2)


async def extended(request: Any) -> Any:
    return records.ExtendResponse(request.job_id, server_time(request.lease_duration[0]))


async def test_ack_names_the_delivery(server: FakeServer, client: SeppClient) -> None:
    server.script("Ack", records.AckResponse(JOB_ID))
    await client.ack(JOB)
    assert server.requests("Ack") == [records.AckRequest(JOB_ID, 2, None)]


async def test_the_worker_id_of_the_reserve_is_sent_along(
    server: FakeServer, client: SeppClient
) -> None:
    server.script("Reserve", lambda _: answer(reserved(job_record())))
    server.script("Ack", records.AckResponse(JOB_ID))
    server.script("Nack", records.NackResponse(JOB_ID))
    server.script("Extend", extended)
    [job] = await client.reserve(ReserveOptions(["emails"], 30, 0, "worker-7"))
    await client.ack(job)
    await client.nack(job)
    await client.extend(job, 5)
    for rpc in ("Ack", "Nack", "Extend"):
        [request] = server.requests(rpc)
        assert request.worker_id == "worker-7"


async def answer(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (Status.NOT_FOUND, errors.JobNotFoundError),
        (Status.FAILED_PRECONDITION, errors.AttemptMismatchError),
        (Status.UNAVAILABLE, errors.TransportError),
        (Status.UNAUTHENTICATED, errors.UnauthenticatedError),
    ],
)
async def test_a_lease_that_is_gone_is_told_apart(
    server: FakeServer, client: SeppClient, status: Status, error: type[Exception]
) -> None:
    for rpc in ("Ack", "Nack", "Extend"):
        server.script(rpc, GRPCError(status, "the server's words"))
    with pytest.raises(error, match="the server's words"):
        await client.ack(JOB)
    with pytest.raises(error, match="the server's words"):
        await client.nack(JOB)
    with pytest.raises(error, match="the server's words"):
        await client.extend(JOB, 1)


@pytest.mark.parametrize(
    ("directive", "retry"),
    [
        (RetryDirective.DEFAULT, records.NackRetry(default=())),
        (RetryDirective.DEAD_LETTER, records.NackRetry(dead_letter=())),
        (RetryDirective.after(2), records.NackRetry(delay=(2, 0))),
        (RetryDirective.after(0), records.NackRetry(delay=(0, 0))),
        (RetryDirective.after(0.0001), records.NackRetry(delay=(0, 1_000_000))),
    ],
)
async def test_nack_sends_its_directive(
    server: FakeServer, client: SeppClient, directive: RetryDirective, retry: records.NackRetry
) -> None:
    server.script("Nack", records.NackResponse(JOB_ID, dead_lettered=True))
    assert await client.nack(JOB, directive, "disk full") is True
    assert server.requests("Nack") == [records.NackRequest(JOB_ID, 2, "disk full", retry)]


async def test_nack_without_a_reason_sends_none(server: FakeServer, client: SeppClient) -> None:
    server.script("Nack", records.NackResponse(JOB_ID))
    assert await client.nack(JOB) is False
    [request] = server.requests("Nack")
    assert request.reason is None
    assert request.retry == records.NackRetry(default=())


async def test_a_reason_is_made_fit_to_be_sent(server: FakeServer, client: SeppClient) -> None:
    server.script("Nack", records.NackResponse(JOB_ID))
    await client.nack(JOB, reason="no file \udcff")
    await client.nack(JOB, reason="x" * 10_000)
    first, second = server.requests("Nack")
    assert first.reason == r"no file \udcff"
    assert len(second.reason.encode()) == 4096


async def test_extend_gives_the_new_expiry(server: FakeServer, client: SeppClient) -> None:
    server.script("Extend", records.ExtendResponse(JOB_ID, (60, 5_000_000)))
    assert await client.extend(JOB, 60) == datetime(1970, 1, 1, 0, 1, 0, 5000, tzinfo=UTC)
    assert server.requests("Extend") == [records.ExtendRequest(JOB_ID, 2, (60, 0))]


@pytest.mark.parametrize("expiry", [None, (-1, 0), (0, -1)])
async def test_an_extend_without_a_good_expiry_is_malformed(
    server: FakeServer, client: SeppClient, expiry: records.Timestamp | None
) -> None:
    server.script("Extend", records.ExtendResponse(JOB_ID, expiry))
    with pytest.raises(errors.MalformedResponseError, match="lease_expires_at"):
        await client.extend(JOB, 60)


@pytest.mark.parametrize(
    ("job", "error", "words"),
    [
        ("some-id", TypeError, "job must have an id and an attempt, as a Job has, not str"),
        (Named("", 1), ValueError, "job.id must not be empty"),
        (Named(5, 1), TypeError, "job.id must be a string, not int"),  # type: ignore[arg-type]
        (Named("a", 0), ValueError, "job.attempt must be between 1 and 4294967295, not 0"),
        (Named("a", 2**32), ValueError, "job.attempt must be between 1 and 4294967295"),
    ],
)
async def test_what_names_no_lease_is_refused_unsent(
    server: FakeServer, client: SeppClient, job: Any, error: type[Exception], words: str
) -> None:
    for call in (
        lambda: client.ack(job),
        lambda: client.nack(job),
        lambda: client.extend(job, 1),
    ):
        with pytest.raises(error, match=words):
            await call()
    with pytest.raises(error, match=words):
        client.hold(job)
    assert server.calls == []


async def test_wrong_arguments_are_refused_unsent(server: FakeServer, client: SeppClient) -> None:
    with pytest.raises(TypeError, match="directive must be a RetryDirective, not str"):
        await client.nack(JOB, "retry")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="reason must be a string, not int"):
        await client.nack(JOB, reason=5)  # type: ignore[arg-type]
    for wrong in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="lease_duration must be more than 0 s"):
            await client.extend(JOB, wrong)
    assert server.calls == []
