"""``hold``: heartbeats inside, the body cancelled when the lease is lost, nothing sent after."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from grpclib.const import Status

from sepp_trio import (
    AttemptMismatchError,
    Job,
    JobNotFoundError,
    LeaseError,
    LeaseLostError,
    ReserveOptions,
    RetryDirective,
    SeppClient,
    TransportError,
)
from sepp_trio.wire import records
from tests.client.fake import after
from tests.worker.helpers import Sepp, until


async def reserve_one(sepp: Sepp, client: SeppClient, lease: float = 30) -> Job:
    sepp.put("t")
    [job] = await client.reserve(ReserveOptions(["emails"], lease, worker_id="w"))
    return job


async def test_the_lease_is_extended_while_the_body_runs(sepp: Sepp, client: SeppClient) -> None:
    job = await reserve_one(sepp, client, 9)
    async with client.hold(job) as lease:
        await trio.sleep(100)
        assert lease.lost is None
        assert 5 < lease.remaining() <= 9
        await lease.ack()
    assert sepp.acks == [job.id]
    assert 30 <= len(sepp.extend_times) <= 40
    beats = sepp.requests("Extend")
    assert {beat.lease_duration for beat in beats} == {(9, 0)}
    assert {beat.worker_id for beat in beats} == {"w"}
    await trio.sleep(100)
    assert len(sepp.extend_times) <= 40


async def test_the_body_may_only_want_the_deadline(sepp: Sepp, client: SeppClient) -> None:
    job = await reserve_one(sepp, client, 9)
    ended = None
    with pytest.raises(LeaseLostError, match="its time is up"):  # noqa: PT012
        async with client.hold(job, auto_extend=False):
            assert trio.current_effective_deadline() < 9
            try:
                await trio.sleep_forever()
            finally:
                ended = trio.current_time()
    assert ended is not None
    assert 8.5 < ended < 9
    assert sepp.extend_times == []
    assert sepp.acks == sepp.nacks == []


@pytest.mark.parametrize("status", [Status.NOT_FOUND, Status.FAILED_PRECONDITION])
async def test_a_lost_lease_cancels_the_body_and_is_raised_plain(
    sepp: Sepp, client: SeppClient, status: Status
) -> None:
    job = await reserve_one(sepp, client)
    sepp.fail("Extend", status)
    with pytest.raises(LeaseLostError, match=f"scripted {status.name}"):
        async with client.hold(job), trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
    assert trio.current_time() == pytest.approx(10, abs=0.1)
    assert sepp.acks == sepp.nacks == []


@pytest.mark.parametrize("way", ["swallows", "ack", "nack", "extend"])
async def test_nothing_is_sent_after_the_loss(sepp: Sepp, client: SeppClient, way: str) -> None:
    job = await reserve_one(sepp, client)
    sepp.fail("Extend", Status.NOT_FOUND)
    with pytest.raises(LeaseLostError):  # noqa: PT012
        async with client.hold(job) as lease:
            with trio.CancelScope(shield=True):
                await trio.sleep(15)
                assert lease.lost == "scripted NOT_FOUND"
                assert "lost: scripted NOT_FOUND" in repr(lease)
                calls: dict[str, Any] = {
                    "ack": lease.ack,
                    "nack": lease.nack,
                    "extend": lambda: lease.extend(3),
                }
                if way in calls:
                    with pytest.raises(LeaseLostError):
                        await calls[way]()
    assert sepp.acks == sepp.nacks == []
    assert len(sepp.extend_times) == 1


async def test_an_error_of_the_bodys_own_wins(sepp: Sepp, client: SeppClient) -> None:
    job = await reserve_one(sepp, client)
    sepp.fail("Extend", Status.NOT_FOUND)
    with pytest.raises(ValueError, match="my own"):  # noqa: PT012
        async with client.hold(job):
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("my own")


async def test_a_cancel_from_outside_is_no_loss(sepp: Sepp, client: SeppClient) -> None:
    job = await reserve_one(sepp, client)
    with trio.move_on_after(3) as scope:
        async with client.hold(job):
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_nack_says_whether_the_job_is_dead(sepp: Sepp, client: SeppClient) -> None:
    job = await reserve_one(sepp, client)
    async with client.hold(job) as lease:
        assert await lease.nack(RetryDirective.DEAD_LETTER, "\udcffpoison") is True
    [nack] = sepp.nacks
    assert nack.reason == "\\udcffpoison"
    job = await reserve_one(sepp, client)
    async with client.hold(job) as lease:
        assert await lease.nack() is False


async def test_a_job_is_settled_once(sepp: Sepp, client: SeppClient) -> None:
    job = await reserve_one(sepp, client)
    async with client.hold(job) as lease:
        await lease.ack()
        assert "settled" in repr(lease)
        for again in (lease.ack(), lease.nack(), lease.extend(3)):
            with pytest.raises(JobNotFoundError):
                await again
        await trio.sleep(100)  # the scope has no deadline any more
    assert len(sepp.acks) == 1


async def test_calls_of_the_client_go_through_the_lease_that_is_held(
    sepp: Sepp, client: SeppClient
) -> None:
    job = await reserve_one(sepp, client, 9)
    async with client.hold(job) as lease:
        await client.extend(job, 200)
        assert 199 < lease.remaining() <= 200
        await trio.sleep(100)
        assert len(sepp.extend_times) == 1
        async with client.hold(job) as inner:
            await inner.ack()
    assert sepp.acks == [job.id]


async def test_an_ack_is_repeated_under_the_heartbeat(sepp: Sepp, client: SeppClient) -> None:
    job = await reserve_one(sepp, client, 3)
    sepp.fail("Ack", after(10, Status.UNAVAILABLE), Status.INTERNAL)
    async with client.hold(job) as lease:
        await lease.ack()
    assert sepp.acks == [job.id]
    assert len(sepp.extend_times) >= 2


@pytest.mark.parametrize(
    ("status", "error"),
    [(Status.NOT_FOUND, JobNotFoundError), (Status.FAILED_PRECONDITION, AttemptMismatchError)],
)
async def test_an_ack_that_is_refused_says_so(
    sepp: Sepp, client: SeppClient, status: Status, error: type[LeaseError]
) -> None:
    job = await reserve_one(sepp, client)
    sepp.fail("Ack", status)
    with pytest.raises(error, match="scripted"):
        async with client.hold(job) as lease:
            await lease.ack()


async def test_an_ack_that_cannot_be_sent_ends_with_the_lease(
    sepp: Sepp, client: SeppClient
) -> None:
    job = await reserve_one(sepp, client, 6)
    sepp.fail("Ack", *[Status.UNAVAILABLE] * 1000)
    with pytest.raises(TransportError):
        async with client.hold(job, auto_extend=False) as lease:
            await lease.ack()
    assert trio.current_time() < 6.1


async def test_a_cancel_ends_the_waiting_for_an_ack_not_the_ack(
    sepp: Sepp, client: SeppClient
) -> None:
    job = await reserve_one(sepp, client)
    sepp.fail("Ack", after(5, None))
    with trio.move_on_after(1):
        async with client.hold(job) as lease:
            await lease.ack()
    # It is waited for at the end of the block.
    assert trio.current_time() == pytest.approx(5, abs=0.1)
    assert sepp.acks == [job.id]


async def test_extend_may_shorten_and_beats_follow(sepp: Sepp, client: SeppClient) -> None:
    job = await reserve_one(sepp, client, 30)
    async with client.hold(job) as lease:
        await lease.extend(3)
        assert 2.9 < lease.remaining() <= 3
        await until(lambda: len(sepp.extend_times) == 2)
        assert trio.current_time() < 1.2
        await trio.sleep(0.01)
        assert 29 < lease.remaining() <= 30


async def test_extends_in_parallel_do_not_overtake_each_other(
    sepp: Sepp, client: SeppClient
) -> None:
    job = await reserve_one(sepp, client, 30)

    async def slow(request: records.ExtendRequest) -> None:
        await trio.sleep(0.5)

    async with client.hold(job) as lease, trio.open_nursery() as nursery:
        await trio.sleep(9.9)
        sepp.fail("Extend", slow, slow, slow)
        await trio.sleep(0.2)  # a beat is on its way
        for seconds in (100, 50, 70):
            nursery.start_soon(lease.extend, seconds)
        await trio.sleep(3)
        assert abs(lease.remaining() - (sepp.leases[job.id].expires - trio.current_time())) < 0.1
        assert len(sepp.extend_times) == 4
    assert all(
        later - earlier >= 0.49
        for earlier, later in zip(sepp.extend_times[:3], sepp.extend_times[1:], strict=False)
    )


async def test_a_failed_extend_leaves_the_lease_as_it_was(sepp: Sepp, client: SeppClient) -> None:
    job = await reserve_one(sepp, client, 30)
    sepp.fail("Extend", Status.INTERNAL, records.ExtendResponse(job.id, None), Status.NOT_FOUND)
    with pytest.raises(JobNotFoundError):  # noqa: PT012
        async with client.hold(job, auto_extend=False) as lease:
            for _ in range(2):
                with pytest.raises(Exception, match=r"scripted|not set"):
                    await lease.extend(100)
            assert lease.remaining() <= 30
            await lease.extend(100)


@pytest.mark.parametrize(
    ("interval", "error"), [(30, ValueError), (0, ValueError), ("1", TypeError)]
)
async def test_an_interval_that_makes_no_sense_is_refused(
    sepp: Sepp, client: SeppClient, interval: Any, error: type[Exception]
) -> None:
    job = await reserve_one(sepp, client, 30)
    with pytest.raises(error, match="interval must be"):
        async with client.hold(job, interval=interval):
            pass


async def test_an_interval_of_ones_own(sepp: Sepp, client: SeppClient) -> None:
    job = await reserve_one(sepp, client, 30)
    async with client.hold(job, interval=2):
        await trio.sleep(21)
    assert len(sepp.extend_times) == 10


async def test_a_lease_that_is_over_is_not_entered(sepp: Sepp, client: SeppClient) -> None:
    job = await reserve_one(sepp, client, 3)
    await trio.sleep(4)
    with pytest.raises(LeaseLostError):
        async with client.hold(job):
            raise AssertionError("entered")


class Named:
    """A job that is known by name only."""

    def __init__(self, job_id: str, attempt: int) -> None:
        self.id = job_id
        self.attempt = attempt


async def test_a_job_that_does_not_know_its_lease_is_extended_first(
    sepp: Sepp, client: SeppClient
) -> None:
    job = await reserve_one(sepp, client, 60)
    async with client.hold(Named(job.id, 1)) as lease:
        assert len(sepp.extend_times) == 1
        assert 29 < lease.remaining() <= 30
    sepp.fail("Extend", Status.NOT_FOUND)
    with pytest.raises(JobNotFoundError):
        async with client.hold(Named("x", 1)):
            raise AssertionError("entered")


async def test_beats_wait_while_the_holder_extends_by_itself(
    sepp: Sepp, client: SeppClient
) -> None:
    job = await reserve_one(sepp, client, 9)

    async def slow(request: records.ExtendRequest) -> None:
        await trio.sleep(5)

    sepp.fail("Extend", slow)
    async with client.hold(job) as lease:
        await trio.sleep(2.5)
        await lease.extend(9)  # a beat falls due meanwhile
        assert len(sepp.extend_times) == 1
        await trio.sleep(20)
        assert lease.lost is None
    assert len(sepp.extend_times) >= 6
