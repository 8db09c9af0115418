"""Which jobs a reserve gets, in which order, for how long."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sepp_trio.broker.config import QueueConfig
from sepp_trio.broker.validation import reserve_plan
from sepp_trio.wire import records

from .helpers import START, Rig, config, from_wire, job, ms, status_of

MakeRig = Callable[..., Rig]


def ids(jobs: list[records.Job]) -> list[str]:
    return [one.id for one in jobs]


def test_priority_goes_before_age(rig: Rig) -> None:
    low = rig.add(priority=1)
    rig.now += 1
    high = rig.add(priority=9)
    middle = rig.add(priority=5)
    assert ids(rig.reserve(max_jobs=3)) == [high, middle, low]


def test_age_decides_within_a_priority(rig: Rig) -> None:
    added = []
    for _ in range(5):
        added.append(rig.add(priority=3))
        rig.now += 1
    assert [rig.take().id for _ in range(5)] == added


def test_jobs_of_one_time_come_in_the_order_of_their_enqueueing(rig: Rig) -> None:
    added = [result.success.job_id for result in rig.enqueue(*[job()] * 20) if result.success]
    assert ids(rig.reserve(max_jobs=20)) == added


def test_queues_are_emptied_in_the_order_listed(rig: Rig) -> None:
    b = rig.add("b", priority=9)
    first, second = rig.add("a"), rig.add("a")
    c = rig.add("c")
    jobs = rig.reserve("a", "b", "c", max_jobs=3)
    assert ids(jobs) == [first, second, b]
    assert [one.queue for one in jobs] == ["a", "a", "b"]
    assert ids(rig.reserve("b", "c", max_jobs=3)) == [c]


def test_a_queue_listed_twice_changes_nothing(rig: Rig) -> None:
    added = [rig.add(), rig.add()]
    assert ids(rig.reserve("q", "q", max_jobs=5)) == added


def test_one_job_unless_more_are_asked_for(rig: Rig) -> None:
    rig.enqueue(job(), job(), job())
    assert len(rig.reserve()) == 1
    assert len(rig.reserve(max_jobs=2**32 - 1)) == 2


def test_no_more_jobs_than_the_server_gives_at_once(make_rig: MakeRig) -> None:
    rig = make_rig(config(max_reserve_batch=2))
    rig.enqueue(job(), job(), job())
    assert len(rig.reserve(max_jobs=3)) == 2


def test_a_lease_is_cut_to_the_shortest_of_all_queues_listed(make_rig: MakeRig) -> None:
    rig = make_rig(config(QueueConfig("short", max_lease_duration_ms=100)))
    rig.add("q")
    rig.add("q")
    assert from_wire(rig.take("q", "short").lease_expires_at) == START + 100
    assert from_wire(rig.take("q", lease=10**12).lease_expires_at) == START + 300_000


def test_a_leased_job_is_nobody_elses(rig: Rig) -> None:
    rig.add()
    rig.take()
    assert rig.reserve() == []


def test_a_job_that_comes_back_keeps_its_place(rig: Rig) -> None:
    old = rig.add()
    rig.now += 1
    young = rig.add()
    assert rig.take().id == old
    rig.nack(old)
    assert [(one.id, one.attempt) for one in rig.reserve(max_jobs=2)] == [(old, 2), (young, 1)]


def plan_status(rig: Rig, **values: object) -> str:
    request = records.ReserveRequest(
        **{"queues": ["q"], "lease_duration": (1, 0), **values}  # type: ignore[arg-type]
    )
    return status_of(reserve_plan, rig.config, request)


@pytest.mark.parametrize(
    "values",
    [
        {"queues": []},
        {"queues": ["q", ""]},
        {"queues": ["a/b"]},
        {"queues": ["."]},
        {"queues": ["a\x9fb"]},
        {"wait_timeout": (0, -1)},
        {"wait_timeout": (1, -1_000_000_001)},
        {"lease_duration": None},
        {"lease_duration": (0, 0)},
        {"lease_duration": (-1, 999_999_999)},
        {"worker_id": ""},
        {"max_jobs": 0},
        {"queues": ["q"] * 33},
        {"queues": ["q" * 513]},
        {"queues": ["é" * 257]},
    ],
)
def test_a_malformed_reserve_is_refused(rig: Rig, values: dict[str, object]) -> None:
    assert plan_status(rig, **values) == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    "values",
    [
        {"queues": ["..."]},
        {"queues": ["a b", "\u200b"]},
        {"wait_timeout": (-1, 1_000_000_000)},
        {"lease_duration": (-1, 1_000_000_001)},
        {"lease_duration": (2**63 - 1, 0)},
        {"queues": ["q"] * 32},
        {"queues": ["q" * 512]},
        {"worker_id": "w"},
    ],
)
def test_a_reserve_on_the_limit_is_taken(rig: Rig, values: dict[str, object]) -> None:
    assert plan_status(rig, **values) == "OK"


def test_waits_and_leases_are_cut_to_milliseconds_and_limits(rig: Rig) -> None:
    tiny = records.ReserveRequest(["q"], (0, 999_999), (0, 1))
    assert reserve_plan(rig.config, tiny)[1:4] == (0, 1, 1)
    huge = records.ReserveRequest(["q"], (2**63 - 1, 0), (2**63 - 1, 0), max_jobs=2**32 - 1)
    assert reserve_plan(rig.config, huge)[1:4] == (300_000, 300_000, 256)


def test_a_strict_server_refuses_undeclared_queues(make_rig: MakeRig) -> None:
    rig = make_rig(config(QueueConfig("known"), strict=True))
    assert plan_status(rig, queues=["known"]) == "OK"
    assert plan_status(rig, queues=["known", "new"]) == "FAILED_PRECONDITION"
    # Too long comes before undeclared in a reserve.
    assert plan_status(rig, queues=["n" * 513]) == "INVALID_ARGUMENT"


def test_a_waiting_time_of_none_is_no_wait(rig: Rig) -> None:
    request = records.ReserveRequest(["q"], None, ms(1000))
    assert reserve_plan(rig.config, request).wait_ms == 0
