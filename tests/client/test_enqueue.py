"""Enqueue, enqueue_batch, enqueue_atomic, replay: what is sent, given and raised."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from grpclib.const import Status

from sepp_trio import errors
from sepp_trio.client import SeppClient
from sepp_trio.types import (
    DeadLetterCause,
    DeadLetterRecord,
    EnqueueAck,
    EnqueueRequest,
    JobValidationError,
    Payload,
    PayloadTooLarge,
    RawDeadLetter,
    UnknownQueue,
    UnknownRejection,
)
from sepp_trio.wire import records
from tests.client.fake import FakeServer, stored

REQUEST = EnqueueRequest("emails", "welcome", Payload(b"{}", "json"), priority=7)
TOO_LARGE = records.JobResult(
    rejection=records.JobRejection(payload_too_large=records.PayloadTooLarge(1, 2))
)


async def test_enqueue_gives_id_and_flag(server: FakeServer, client: SeppClient) -> None:
    server.script(
        "EnqueueBatch",
        records.EnqueueBatchResponse(
            [records.JobResult(success=records.EnqueueResponse("an-id", True))]
        ),
    )
    assert await client.enqueue(REQUEST) == EnqueueAck("an-id", deduplicated=True)
    [request] = server.requests("EnqueueBatch")
    [job] = request.jobs
    assert (job.queue, job.job_type, job.priority) == ("emails", "welcome", 7)
    assert job.payload == records.Payload(b"{}", "json")


async def test_a_rejected_job_is_an_error(server: FakeServer, client: SeppClient) -> None:
    server.script("EnqueueBatch", records.EnqueueBatchResponse([TOO_LARGE]))
    with pytest.raises(errors.JobRejectedError) as caught:
        await client.enqueue(REQUEST)
    assert caught.value.rejection == PayloadTooLarge(1, 2)


async def test_a_rejection_of_an_unknown_kind_is_still_a_rejection(
    server: FakeServer, client: SeppClient
) -> None:
    # Field 99 of JobRejection: a reason that a newer server may have.
    server.script("EnqueueBatch", b"\x0a\x05\x12\x03\x9a\x06\x00")
    with pytest.raises(errors.JobRejectedError) as caught:
        await client.enqueue(REQUEST)
    assert caught.value.rejection == UnknownRejection()
    assert str(caught.value)


async def test_a_batch_gives_each_jobs_result_in_order(
    server: FakeServer, client: SeppClient
) -> None:
    ack = records.JobResult(success=records.EnqueueResponse("an-id"))
    server.script("EnqueueBatch", records.EnqueueBatchResponse([ack, TOO_LARGE]))
    results = await client.enqueue_batch(iter([REQUEST, REQUEST]))
    assert results == [EnqueueAck("an-id", False), PayloadTooLarge(1, 2)]


async def test_an_empty_batch_is_refused_unsent(server: FakeServer, client: SeppClient) -> None:
    for call in (client.enqueue_batch, client.enqueue_atomic):
        with pytest.raises(errors.EmptyBatchError, match="at least one job"):
            await call([])
    assert server.calls == []


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (stored("one"), errors.BatchResultCountMismatchError, "2 jobs were sent but 1 results"),
        (
            records.EnqueueBatchResponse([records.JobResult()] * 2),
            errors.MalformedResponseError,
            "no outcome",
        ),
        (b"\xff", errors.MalformedResponseError, "does not decode"),
        (Status.UNAVAILABLE, errors.TransportError, "scripted UNAVAILABLE"),
    ],
)
async def test_a_batch_without_a_good_answer_fails(
    server: FakeServer,
    client: SeppClient,
    answer: object,
    error: type[Exception],
    words: str,
) -> None:
    server.script("EnqueueBatch", answer)
    with pytest.raises(error, match=words):
        await client.enqueue_batch([REQUEST, REQUEST])


async def test_an_atomic_batch_gives_all_acks(server: FakeServer, client: SeppClient) -> None:
    success = records.EnqueueAtomicSuccess(
        [records.EnqueueResponse("one"), records.EnqueueResponse("two", True)]
    )
    server.script("EnqueueAtomic", records.EnqueueAtomicResponse(success=success))
    assert await client.enqueue_atomic([REQUEST, REQUEST]) == [
        EnqueueAck("one", False),
        EnqueueAck("two", True),
    ]


async def test_a_refused_atomic_batch_lists_every_bad_job(
    server: FakeServer, client: SeppClient
) -> None:
    rejection = records.JobRejection(unknown_queue=records.UnknownQueue("q"))
    failure = records.BatchValidationFailure([records.JobValidationError(1, rejection)])
    server.script("EnqueueAtomic", records.EnqueueAtomicResponse(rejection=failure))
    with pytest.raises(errors.BatchValidationError) as caught:
        await client.enqueue_atomic([REQUEST, REQUEST])
    assert caught.value.errors == (JobValidationError(1, UnknownQueue("q")),)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (
            records.EnqueueAtomicResponse(
                success=records.EnqueueAtomicSuccess([records.EnqueueResponse("one")])
            ),
            errors.BatchResultCountMismatchError,
        ),
        (records.EnqueueAtomicResponse(), errors.MalformedResponseError),
    ],
)
async def test_an_atomic_batch_without_a_good_answer_fails(
    server: FakeServer, client: SeppClient, answer: object, error: type[Exception]
) -> None:
    server.script("EnqueueAtomic", answer)
    with pytest.raises(error):
        await client.enqueue_atomic([REQUEST, REQUEST])


async def test_what_is_no_request_is_refused_unsent(server: FakeServer, client: SeppClient) -> None:
    with pytest.raises(TypeError, match="request must be an EnqueueRequest, not str"):
        await client.enqueue("welcome")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="requests at index 1 must be an EnqueueRequest, not dict"):
        await client.enqueue_batch([REQUEST, {}])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="requests must be an iterable, not EnqueueRequest"):
        await client.enqueue_atomic(REQUEST)  # type: ignore[arg-type]
    assert server.calls == []


async def test_a_schedule_is_the_same_instant_in_any_zone(
    server: FakeServer, client: SeppClient
) -> None:
    moment = datetime(2026, 1, 1, 12, 30, 0, 1500, tzinfo=UTC)
    server.script("EnqueueBatch", stored("a", "b"))
    tokyo = moment.astimezone(timezone(timedelta(hours=9)))
    await client.enqueue_batch(
        [
            EnqueueRequest("q", "t", scheduled_at=moment),
            EnqueueRequest("q", "t", scheduled_at=tokyo),
        ]
    )
    [request] = server.requests("EnqueueBatch")
    assert [job.scheduled_at for job in request.jobs] == [(1_767_270_600, 1_500_000)] * 2


async def test_a_replayed_dead_letter_is_a_new_job(server: FakeServer, client: SeppClient) -> None:
    server.script("EnqueueBatch", stored("new-id"))
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    record = DeadLetterRecord(
        "old-id",
        "emails",
        "welcome",
        None,
        7,
        0,
        moment,
        DeadLetterCause.REJECTED,
        moment,
        3,
        scheduled_at=moment,
    )
    assert await client.replay(record) == EnqueueAck("new-id", False)
    [job] = server.requests("EnqueueBatch")[0].jobs
    assert (job.queue, job.job_type, job.priority) == ("emails", "welcome", 7)
    assert job.scheduled_at is None
    assert job.idempotency_key is None
    assert job.max_attempts is None


async def test_a_record_that_cannot_be_read_is_not_replayed(client: SeppClient) -> None:
    with pytest.raises(TypeError, match="record must be a DeadLetterRecord, not RawDeadLetter"):
        await client.replay(RawDeadLetter(b"", ""))  # type: ignore[arg-type]
