"""``hold``: heartbeats inside, the body cancelled when the lease is lost, nothing sent after."""

from __future__ import annotations

from itertools import pairwise
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
    TransportError,
    wire,
)
from sepp_trio.testing import Answer, Delay, Fail
from sepp_trio.wire import records
from tests.worker.bench import Bench
from tests.worker.helpers import until

NOT_FOUND = Fail("Extend", status=Status.NOT_FOUND)


async def reserve_one(bench: Bench, lease: float = 30) -> Job:
    await bench.put("t")
    [job] = await bench.client.reserve(ReserveOptions(["emails"], lease, worker_id="w"))
    return job


async def test_the_lease_is_extended_while_the_body_runs(bench: Bench) -> None:
    job = await reserve_one(bench, 9)
    async with bench.client.hold(job) as lease:
        await trio.sleep(100)
        assert lease.lost is None
        assert 5 < lease.remaining() <= 9
        await lease.ack()
    assert bench.jobs().acked
    beats = bench.asked("Extend")
    assert 30 <= len(beats) <= 40
    assert {beat.lease_duration for beat in beats} == {(9, 0)}
    assert {beat.worker_id for beat in beats} == {"w"}
    await trio.sleep(100)
    assert len(bench.calls.of("Extend")) == len(beats)


async def test_the_body_may_only_want_the_deadline(bench: Bench) -> None:
    job = await reserve_one(bench, 9)
    ended = None
    with pytest.raises(LeaseLostError, match="its time is up"):  # noqa: PT012
        async with bench.client.hold(job, auto_extend=False):
            assert trio.current_effective_deadline() < 9
            try:
                await trio.sleep_forever()
            finally:
                ended = trio.current_time()
    assert ended is not None
    assert 8.5 < ended < 9
    assert bench.calls.of("Extend") == bench.calls.of("Ack") == bench.calls.of("Nack") == ()


@pytest.mark.parametrize(("max_attempts", "text"), [(1, "job not found"), (2, "attempt mismatch")])
async def test_a_lost_lease_cancels_the_body_and_is_raised_plain(
    bench: Bench, max_attempts: int, text: str
) -> None:
    """The job is gone, or somebody else has it."""
    await bench.put("t", max_attempts=max_attempts)
    [job] = await bench.client.reserve(ReserveOptions(["emails"], 30))
    await bench.lose_lease(job)
    await bench.client.reserve(ReserveOptions(["emails"], 30, wait_timeout=0))
    with pytest.raises(LeaseLostError, match=text):
        async with bench.client.hold(job), trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
    assert trio.current_time() == pytest.approx(10, abs=0.1)
    assert bench.calls.of("Ack") == bench.calls.of("Nack") == ()


@pytest.mark.parametrize("way", ["swallows", "ack", "nack", "extend"])
async def test_nothing_is_sent_after_the_loss(bench: Bench, way: str) -> None:
    job = await reserve_one(bench)
    bench.inject(NOT_FOUND)
    with pytest.raises(LeaseLostError):  # noqa: PT012
        async with bench.client.hold(job) as lease:
            with trio.CancelScope(shield=True):
                await trio.sleep(15)
                assert lease.lost == "failed by a fault plan"
                assert "lost: failed by a fault plan" in repr(lease)
                ways: dict[str, Any] = {
                    "ack": lease.ack,
                    "nack": lease.nack,
                    "extend": lambda: lease.extend(3),
                }
                if way in ways:
                    with pytest.raises(LeaseLostError):
                        await ways[way]()
    assert bench.calls.of("Ack") == bench.calls.of("Nack") == ()
    assert len(bench.calls.of("Extend")) == 1


async def test_an_error_of_the_bodys_own_wins(bench: Bench) -> None:
    job = await reserve_one(bench)
    bench.inject(NOT_FOUND)
    with pytest.raises(ValueError, match="my own"):  # noqa: PT012
        async with bench.client.hold(job):
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("my own")


async def test_a_cancel_from_outside_is_no_loss(bench: Bench) -> None:
    job = await reserve_one(bench)
    with trio.move_on_after(3) as scope:
        async with bench.client.hold(job):
            await trio.sleep_forever()
    assert scope.cancelled_caught


async def test_nack_says_whether_the_job_is_dead(bench: Bench) -> None:
    job = await reserve_one(bench)
    async with bench.client.hold(job) as lease:
        assert await lease.nack(RetryDirective.DEAD_LETTER, "\udcffpoison") is True
    assert bench.jobs().dead_letters[0].nack_reasons == ("\\udcffpoison",)
    job = await reserve_one(bench)
    async with bench.client.hold(job) as lease:
        assert await lease.nack() is False


async def test_a_job_is_settled_once(bench: Bench) -> None:
    job = await reserve_one(bench)
    async with bench.client.hold(job) as lease:
        await lease.ack()
        assert "settled" in repr(lease)
        for again in (lease.ack(), lease.nack(), lease.extend(3)):
            with pytest.raises(JobNotFoundError):
                await again
        await trio.sleep(100)  # the scope has no deadline any more
    assert len(bench.calls.of("Ack")) == 1


async def test_calls_of_the_client_go_through_the_lease_that_is_held(bench: Bench) -> None:
    job = await reserve_one(bench, 9)
    async with bench.client.hold(job) as lease:
        await bench.client.extend(job, 200)
        assert 199 < lease.remaining() <= 200
        await trio.sleep(100)
        assert len(bench.calls.of("Extend")) == 1
        async with bench.client.hold(job) as inner:
            await inner.ack()
    assert bench.jobs().acked


async def test_a_held_job_may_be_settled_through_the_client(bench: Bench) -> None:
    job = await reserve_one(bench)
    async with bench.client.hold(job):
        await bench.client.ack(job)
        await trio.sleep(100)  # no beat finds the job gone and cancels this
    assert bench.jobs().acked
    job = await reserve_one(bench)
    async with bench.client.hold(job):
        assert await bench.client.nack(job, RetryDirective.DEAD_LETTER, "no") is True


async def test_an_ack_is_repeated_under_the_heartbeat(bench: Bench) -> None:
    job = await reserve_one(bench, 3)
    bench.inject(Fail("Ack"), Fail("Ack", 2, Status.INTERNAL), Delay("Ack", 3, request=5))
    async with bench.client.hold(job) as lease:
        await lease.ack()
    assert bench.jobs().acked
    assert len(bench.calls.of("Extend")) >= 2


@pytest.mark.parametrize(
    ("status", "error"),
    [(Status.NOT_FOUND, JobNotFoundError), (Status.FAILED_PRECONDITION, AttemptMismatchError)],
)
async def test_an_ack_that_is_refused_says_so(
    bench: Bench, status: Status, error: type[LeaseError]
) -> None:
    job = await reserve_one(bench)
    bench.inject(Fail("Ack", status=status))
    with pytest.raises(error, match="fault plan"):
        async with bench.client.hold(job) as lease:
            await lease.ack()


async def test_an_ack_that_cannot_be_sent_ends_with_the_lease(bench: Bench) -> None:
    job = await reserve_one(bench, 6)
    bench.inject(Fail("Ack", times=None))
    with pytest.raises(TransportError):
        async with bench.client.hold(job, auto_extend=False) as lease:
            await lease.ack()
    assert trio.current_time() < 6.1


async def test_a_cancel_ends_the_waiting_for_an_ack_not_the_ack(bench: Bench) -> None:
    job = await reserve_one(bench)
    bench.inject(Delay("Ack", request=5))
    with trio.move_on_after(1):
        async with bench.client.hold(job) as lease:
            await lease.ack()
    # It is waited for at the end of the block.
    assert trio.current_time() == pytest.approx(5, abs=0.1)
    assert bench.jobs().acked


async def test_extend_may_shorten_and_beats_follow(bench: Bench) -> None:
    job = await reserve_one(bench, 30)
    async with bench.client.hold(job) as lease:
        await lease.extend(3)
        assert 2.9 < lease.remaining() <= 3
        await until(lambda: len(bench.calls.of("Extend")) == 2)
        assert trio.current_time() < 1.2
        await trio.sleep(0.01)
        assert 29 < lease.remaining() <= 30


async def test_extends_in_parallel_do_not_overtake_each_other(bench: Bench) -> None:
    job = await reserve_one(bench, 30)
    async with bench.client.hold(job) as lease, trio.open_nursery() as nursery:
        await trio.sleep(9.9)
        bench.inject(Delay("Extend", request=0.5, times=3))
        await trio.sleep(0.2)  # a beat is on its way
        for seconds in (100, 50, 70):
            nursery.start_soon(lease.extend, seconds)
        await trio.sleep(3)
        [held] = bench.jobs().leased
        assert abs(lease.remaining() - ((held.lease_deadline or 0) - trio.current_time())) < 0.1
        assert len(bench.calls.of("Extend")) == 4
    assert all(later - earlier >= 0.49 for earlier, later in pairwise(bench.calls.times("Extend")))


async def test_a_failed_extend_leaves_the_lease_as_it_was(bench: Bench) -> None:
    job = await reserve_one(bench, 30)
    bench.inject(
        Fail("Extend", 1, Status.INTERNAL),
        Answer("Extend", 2, wire.encode(records.ExtendResponse(job.id, None))),
        Fail("Extend", 3, Status.NOT_FOUND),
    )
    with pytest.raises(JobNotFoundError):  # noqa: PT012
        async with bench.client.hold(job, auto_extend=False) as lease:
            for _ in range(2):
                with pytest.raises(Exception, match=r"fault plan|not set"):
                    await lease.extend(100)
            assert lease.remaining() <= 30
            await lease.extend(100)


@pytest.mark.parametrize(
    ("interval", "error"), [(30, ValueError), (0, ValueError), ("1", TypeError)]
)
async def test_an_interval_that_makes_no_sense_is_refused(
    bench: Bench, interval: Any, error: type[Exception]
) -> None:
    job = await reserve_one(bench, 30)
    with pytest.raises(error, match="interval must be"):
        async with bench.client.hold(job, interval=interval):
            pass


async def test_an_interval_of_ones_own(bench: Bench) -> None:
    job = await reserve_one(bench, 30)
    async with bench.client.hold(job, interval=2):
        await trio.sleep(21)
    assert len(bench.calls.of("Extend")) == 10


async def test_a_lease_that_is_over_is_not_entered(bench: Bench) -> None:
    job = await reserve_one(bench, 3)
    await trio.sleep(4)
    with pytest.raises(LeaseLostError):
        async with bench.client.hold(job):
            raise AssertionError("entered")


class Named:
    """A job that is known by name only."""

    def __init__(self, job_id: str, attempt: int) -> None:
        self.id = job_id
        self.attempt = attempt


async def test_a_job_that_does_not_know_its_lease_is_extended_first(bench: Bench) -> None:
    job = await reserve_one(bench, 60)
    async with bench.client.hold(Named(job.id, 1)) as lease:
        assert len(bench.calls.of("Extend")) == 1
        assert 29 < lease.remaining() <= 30
    bench.inject(NOT_FOUND)
    with pytest.raises(JobNotFoundError):
        async with bench.client.hold(Named("x", 1)):
            raise AssertionError("entered")


async def test_beats_wait_while_the_holder_extends_by_itself(bench: Bench) -> None:
    job = await reserve_one(bench, 9)
    bench.inject(Delay("Extend", request=5))
    async with bench.client.hold(job) as lease:
        await trio.sleep(2.5)
        await lease.extend(9)  # a beat falls due meanwhile
        assert len(bench.calls.of("Extend")) == 1
        await trio.sleep(20)
        assert lease.lost is None
    assert len(bench.calls.of("Extend")) >= 6
