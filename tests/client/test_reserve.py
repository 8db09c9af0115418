"""Reserve: what is asked for, what is made of the answer, what a cancel does."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from sepp_trio import errors, wire
from sepp_trio.client import SeppClient
from sepp_trio.client._reserve import wait_within
from sepp_trio.types import Job, Payload, ReserveOptions
from sepp_trio.wire import records
from tests.client.fake import (
    JOB_ID,
    FakeServer,
    after,
    info_record,
    job_record,
    never,
    reserved,
    server_time,
)

OPTIONS = ReserveOptions(["emails"], 30)


def freshly(*jobs: dict[str, Any] | bytes, delay: float = 0.0) -> Any:
    """An answer whose leases begin when it is given."""

    async def give(_: Any) -> Any:
        await trio.sleep(delay)
        return reserved(*(job if isinstance(job, bytes) else job_record(**job) for job in jobs))

    return give


async def test_jobs_come_with_all_they_have(server: FakeServer, client: SeppClient) -> None:
    server.script("Reserve", freshly({"custom": b"", "scheduled_at": (0, 0)}))
    [job] = await client.reserve(ReserveOptions(["emails"], 30, worker_id="w", max_jobs=5))
    assert isinstance(job, Job)
    assert (job.id, job.queue, job.job_type, job.attempt) == (JOB_ID, "emails", "welcome", 1)
    assert job.payload == Payload(b"{}", "json")
    assert (job.worker_id, job.lease_duration) == ("w", 30.0)
    [request] = server.requests("Reserve")
    assert request == records.ReserveRequest(["emails"], (30, 0), (30, 0), "w", 5)


async def test_no_job_is_an_empty_list(server: FakeServer, client: SeppClient) -> None:
    server.script("Reserve", reserved())
    assert await client.reserve(OPTIONS) == []


async def test_unknown_fields_of_a_newer_server_are_ignored(
    server: FakeServer, client: SeppClient
) -> None:
    newer = wire.encode(job_record()) + b"\x9a\x06\x03abc" + b"\xa0\x06\x05"
    server.script("Reserve", reserved(newer))
    [job] = await client.reserve(OPTIONS)
    assert job.id == JOB_ID
    assert repr(job)


async def test_undeclared_queues_are_named(server: FakeServer, client: SeppClient) -> None:
    server.script("Reserve", GRPCError(Status.FAILED_PRECONDITION, "undeclared: emails, sms"))
    with pytest.raises(errors.UnknownQueuesError, match="emails, sms"):
        await client.reserve(OPTIONS)


async def test_what_are_no_options_is_refused_unsent(
    server: FakeServer, client: SeppClient
) -> None:
    with pytest.raises(TypeError, match="options must be ReserveOptions, not list"):
        await client.reserve(["emails"])  # type: ignore[arg-type]
    assert server.calls == []


# ---- time ----


async def test_the_call_outlasts_its_wait_by_ten_seconds(
    autojump_clock: MockClock, server: FakeServer, client: SeppClient
) -> None:
    server.script("Reserve", never)
    with pytest.raises(errors.TransportError, match="deadline"):
        await client.reserve(ReserveOptions(["emails"], 30, 2))
    assert trio.current_time() == pytest.approx(12, abs=0.2)
    [timeout] = [seen.timeout for seen in server.calls if seen.rpc == "Reserve"]
    assert timeout == "12000m"


@pytest.mark.parametrize(
    ("deadline", "wait", "asked"),
    [(20, 30, (19, 0)), (100, 30, (30, 0)), (1, 30, (0, 500_000_000)), (5, 0, (0, 0))],
)
async def test_the_wait_ends_before_the_callers_deadline(
    autojump_clock: MockClock,
    server: FakeServer,
    client: SeppClient,
    deadline: float,
    wait: float,
    asked: records.Duration,
) -> None:
    async def wait_in_vain(request: Any) -> Any:
        seconds, nanos = request.wait_timeout
        await trio.sleep(seconds + nanos / 1e9 + 0.02)
        return reserved()

    server.script("Reserve", wait_in_vain)
    with trio.move_on_after(deadline) as scope:
        assert await client.reserve(ReserveOptions(["emails"], 30, wait)) == []
    assert not scope.cancelled_caught
    [request] = server.requests("Reserve")
    assert request.wait_timeout == asked


@given(st.floats(0, 1e6), st.floats(-10, 1e6), st.floats(0, 1e5))
def test_a_wait_fits_into_what_is_left(wait: float, deadline: float, now: float) -> None:
    fitting = wait_within(wait, deadline, now)
    assert 0 <= fitting <= wait
    if deadline - now > 1e-9:  # else the sum may round up to it
        assert now + fitting < deadline
    assert wait_within(wait, float("inf"), now) == wait


async def test_a_lease_ends_on_trios_clock_not_after_the_servers(
    autojump_clock: MockClock, server: FakeServer, client: SeppClient
) -> None:
    server.script("Reserve", freshly({}, delay=12))
    await client.get_server_info()
    [job] = await client.reserve(OPTIONS)
    assert job.lease_deadline is not None
    assert trio.current_time() == 12
    assert 41.9 <= job.lease_deadline <= 42


async def test_the_servers_time_is_asked_for_with_the_first_reserve(
    autojump_clock: MockClock, server: FakeServer, client: SeppClient
) -> None:
    server.script("Reserve", freshly({}, delay=12))
    assert server.calls == []
    [job] = await client.reserve(OPTIONS)
    assert job.lease_deadline is not None
    assert 41.9 <= job.lease_deadline <= 42
    await client.reserve(OPTIONS)
    assert len(server.requests("GetServerInfo")) == 1


async def test_a_server_that_hides_its_time_costs_lease_not_safety(
    autojump_clock: MockClock, server: FakeServer, client: SeppClient
) -> None:
    server.script("GetServerInfo", Status.UNIMPLEMENTED)
    server.script("Reserve", freshly({}, delay=12))
    [job] = await client.reserve(OPTIONS)
    assert job.lease_deadline is not None
    assert job.lease_deadline <= 42


async def test_no_lease_is_longer_than_what_was_asked_for(
    autojump_clock: MockClock, server: FakeServer, client: SeppClient
) -> None:
    server.script("Reserve", reserved(job_record(lease_expires_at=server_time(9e4))))
    await client.get_server_info()
    [job] = await client.reserve(OPTIONS)
    assert job.lease_deadline is not None
    assert job.lease_deadline <= trio.current_time() + 30


async def test_a_servers_clock_that_was_set_is_asked_for_again(
    autojump_clock: MockClock, server: FakeServer, client: SeppClient
) -> None:
    server.script("Reserve", freshly({}))
    await client.reserve(OPTIONS)
    await client.reserve(OPTIONS)
    assert len(server.requests("GetServerInfo")) == 1
    await trio.sleep(5)
    server.script("Reserve", reserved(job_record(lease_expires_at=server_time(3630))))
    server.script("GetServerInfo", info_record(server_time=server_time(3600)))
    [job] = await client.reserve(OPTIONS)
    assert job.lease_deadline is not None
    assert job.lease_deadline <= trio.current_time() + 30
    await trio.testing.wait_all_tasks_blocked()
    assert len(server.requests("GetServerInfo")) == 2
    [job] = await client.reserve(OPTIONS)
    assert job.lease_deadline is not None
    assert 34.9 <= job.lease_deadline <= 35
    assert len(server.requests("GetServerInfo")) == 2


# ---- jobs that cannot be read ----


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"job_type": ""}, "job_type is empty"),
        ({"priority": 12}, "priority is 12"),
        ({"priority": 300}, "priority is 300"),
        ({"lease_expires_at": None}, "lease_expires_at is not set"),
        ({"enqueued_at": (-1, 0)}, "enqueued_at is before 1970"),
        ({"custom": b"\x52\x05\x0a\x01a\x12\x00"}, "custom"),
        ({"payload": records.Payload(b"", "json")}, "payload.data"),
    ],
)
async def test_a_bad_job_is_given_up_and_the_others_are_delivered(
    autojump_clock: MockClock,
    server: FakeServer,
    client: SeppClient,
    caplog: pytest.LogCaptureFixture,
    bad: dict[str, Any],
    words: str,
) -> None:
    server.script("Nack", records.NackResponse("bad", dead_lettered=True))
    server.script("Reserve", freshly({"id": "one"}, {"id": "bad", "attempt": 2, **bad}, {}))
    jobs = await client.reserve(ReserveOptions(["emails"], 30, worker_id="w"))
    assert [job.id for job in jobs] == ["one", JOB_ID]
    await trio.sleep(1)
    [nack] = server.requests("Nack")
    assert (nack.job_id, nack.attempt, nack.worker_id) == ("bad", 2, "w")
    assert nack.retry == records.NackRetry(dead_letter=())
    assert words in nack.reason
    assert "reserved job bad cannot be read" in caplog.text


@pytest.mark.parametrize("bad", [{"id": ""}, {"attempt": 0}, b"\xff\xff"])
async def test_a_job_that_nobody_can_name_is_logged(
    autojump_clock: MockClock,
    server: FakeServer,
    client: SeppClient,
    caplog: pytest.LogCaptureFixture,
    bad: dict[str, Any] | bytes,
) -> None:
    server.script("Reserve", freshly(bad))
    assert await client.reserve(OPTIONS) == []
    await trio.sleep(1)
    assert server.requests("Nack") == []
    assert "cannot be read, nor given up" in caplog.text


async def test_a_bad_job_that_cannot_be_given_up_is_logged_and_waited_for_by_nobody(
    autojump_clock: MockClock,
    server: FakeServer,
    client: SeppClient,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.script("Nack", never)
    server.script("Reserve", freshly({"id": "bad", "job_type": ""}))
    with caplog.at_level(logging.WARNING):
        assert await client.reserve(OPTIONS) == []
        assert trio.current_time() == 0
        await trio.sleep(10)
    assert "job bad could not be given up" in caplog.text


# ---- cancels ----


async def test_a_cancel_before_the_call_sends_nothing(
    server: FakeServer, client: SeppClient
) -> None:
    server.script("Reserve", freshly({}))
    with trio.CancelScope() as scope:
        scope.cancel()
        await client.reserve(OPTIONS)
    assert scope.cancelled_caught
    await trio.testing.wait_all_tasks_blocked()
    assert server.requests("Reserve") == []


async def test_jobs_that_are_being_claimed_are_handed_over_in_place_of_the_cancel(
    autojump_clock: MockClock, server: FakeServer, client: SeppClient
) -> None:
    server.script("Reserve", freshly({}, delay=0.3))
    jobs: list[Job] = []
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_after, scope, 0.1)
            jobs += await client.reserve(OPTIONS)
            with pytest.raises(trio.Cancelled):
                await trio.lowlevel.checkpoint()
    assert [job.id for job in jobs] == [JOB_ID]


async def cancel_after(scope: trio.CancelScope, seconds: float) -> None:
    await trio.sleep(seconds)
    scope.cancel()


@pytest.mark.parametrize("answer_", [never, after(0.3, reserved()), after(0.3, Status.INTERNAL)])
async def test_a_cancel_of_a_young_call_waits_half_a_second_at_most(
    autojump_clock: MockClock, server: FakeServer, client: SeppClient, answer_: Any
) -> None:
    server.script("Reserve", answer_)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_after, scope, 0.1)
            await client.reserve(OPTIONS)
    assert scope.cancelled_caught
    assert trio.current_time() == pytest.approx(0.55 if answer_ is never else 0.3)
    await trio.testing.wait_all_tasks_blocked()
    assert server.open_calls == 0


async def test_a_call_that_only_waits_is_cut_off_at_once(
    autojump_clock: MockClock, server: FakeServer, client: SeppClient
) -> None:
    server.script("Reserve", never)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_after, scope, 7)
            await client.reserve(OPTIONS)
    assert trio.current_time() == pytest.approx(7.05)
    await trio.testing.wait_all_tasks_blocked()
    assert server.open_calls == 0


async def test_an_answer_that_crosses_the_reset_is_handed_over(
    autojump_clock: MockClock, server: FakeServer, client: SeppClient
) -> None:
    async def answer_whatever_happens(_: Any) -> Any:
        with trio.CancelScope(shield=True):
            await trio.sleep(7)
        return reserved(job_record())

    server.script("Reserve", answer_whatever_happens)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_after, scope, 7)
            jobs = await client.reserve(OPTIONS)
            assert [job.id for job in jobs] == [JOB_ID]


async def test_drained_records_are_handed_over_in_place_of_the_cancel(
    autojump_clock: MockClock, server: FakeServer, client: SeppClient
) -> None:
    server.script("DrainDeadLetters", after(10.5, records.DrainDeadLettersResponse([b"\xff\xff"])))
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_after, scope, 10)
            records_ = await client.drain_dead_letters()
    assert len(records_) == 1


async def test_a_cancelled_drain_waits_a_second_at_most(
    autojump_clock: MockClock, server: FakeServer, client: SeppClient
) -> None:
    server.script("DrainDeadLetters", never)
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_after, scope, 10)
            await client.drain_dead_letters()
    assert scope.cancelled_caught
    assert trio.current_time() == pytest.approx(11.05)
