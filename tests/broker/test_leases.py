"""Ack, nack, extend, and leases that end."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from sepp_trio.broker.config import QueueConfig
from sepp_trio.broker.validation import ReservePlan, check_ack, check_nack, extension_ms
from sepp_trio.wire import records

from .helpers import START, Rig, config, job, status_of

MakeRig = Callable[..., Rig]
SOME_ID = str(uuid.UUID(int=0, version=4))


def three_calls(rig: Rig, job_id: str, attempt: int) -> set[str]:
    """What ack, nack and extend say, each of them."""
    return {
        status_of(rig.extend, job_id, attempt),
        status_of(rig.nack, job_id, attempt),
        status_of(rig.ack, job_id, attempt),
    }


def test_an_acked_job_is_gone(rig: Rig) -> None:
    rig.add()
    rig.ack(rig.take().id)
    assert rig.depth() == 0
    assert rig.reserve() == []


@pytest.mark.parametrize("place", ["never", "ready", "scheduled", "acked", "dead", "expired"])
def test_a_job_that_is_not_leased_is_not_found(rig: Rig, place: str) -> None:
    job_id = SOME_ID if place == "never" else rig.add(max_attempts=1 if place == "dead" else None)
    if place in ("scheduled", "acked", "dead", "expired"):
        rig.take(lease=100)
    if place == "scheduled":
        rig.nack(job_id, delay=1000)
    elif place == "acked":
        rig.ack(job_id)
    elif place == "dead":
        rig.nack(job_id)
    elif place == "expired":
        rig.now += 100
    assert three_calls(rig, job_id, 1) == {"NOT_FOUND"}


def test_another_attempt_than_the_running_one_is_refused(rig: Rig) -> None:
    """Trial 57."""
    job_id = rig.add(max_attempts=10)
    rig.take(lease=100)
    rig.now += 100
    assert rig.take().attempt == 2
    assert three_calls(rig, job_id, 1) == {"FAILED_PRECONDITION"}
    assert three_calls(rig, job_id, 3) == {"FAILED_PRECONDITION"}
    assert three_calls(rig, job_id, 2**32 - 1) == {"FAILED_PRECONDITION"}
    rig.nack(job_id, 2)
    assert rig.take().attempt == 3
    assert three_calls(rig, job_id, 2) == {"FAILED_PRECONDITION"}
    rig.ack(job_id, 3)


def test_an_id_is_compared_letter_by_letter(rig: Rig) -> None:
    job_id = str(uuid.UUID("abcdefab-0000-4000-8000-000000000000"))
    assert three_calls(rig, job_id.upper(), 1) == {"NOT_FOUND"}


@pytest.mark.parametrize(
    "values",
    [
        {"job_id": ""},
        {"job_id": "x" * 36},
        {"job_id": SOME_ID.replace("-", "")},
        {"job_id": SOME_ID + "0"},
        {"job_id": SOME_ID + "\n"},
        {"attempt": 0},
        {"worker_id": ""},
    ],
)
def test_malformed_calls_are_refused(values: dict[str, Any]) -> None:
    values = {"job_id": SOME_ID, "attempt": 1} | values
    assert status_of(check_ack, records.AckRequest(**values)) == "INVALID_ARGUMENT"
    assert status_of(check_nack, records.NackRequest(**values)) == "INVALID_ARGUMENT"
    extend = records.ExtendRequest(lease_duration=(1, 0), **values)
    assert status_of(extension_ms, extend) == "INVALID_ARGUMENT"


def test_a_nack_needs_a_strategy_if_it_speaks_of_retries() -> None:
    for retry, status in [
        (None, "OK"),
        (records.NackRetry(), "INVALID_ARGUMENT"),
        (records.NackRetry(delay=(0, -1)), "INVALID_ARGUMENT"),
        (records.NackRetry(delay=(-1, 1_000_000_000)), "OK"),
        (records.NackRetry(default=()), "OK"),
        (records.NackRetry(dead_letter=()), "OK"),
    ]:
        assert status_of(check_nack, records.NackRequest(SOME_ID, 1, retry=retry)) == status


def test_an_extension_needs_a_length() -> None:
    for lease, status in [
        (None, "INVALID_ARGUMENT"),
        ((0, 0), "INVALID_ARGUMENT"),
        ((-1, 0), "INVALID_ARGUMENT"),
        ((0, 1), "OK"),
    ]:
        assert status_of(extension_ms, records.ExtendRequest(SOME_ID, 1, lease)) == status


# ---- Nack ----


def test_a_nacked_job_comes_back_at_once_with_the_next_attempt(rig: Rig) -> None:
    job_id = rig.add()
    assert not rig.nack(rig.take().id)
    assert (rig.take().attempt, rig.depth()) == (2, 1)
    assert not rig.nack(job_id, 2)
    assert rig.take().attempt == 3
    assert rig.nack(job_id, 3)
    assert rig.depth() == 0


def test_a_delayed_job_comes_back_when_its_delay_is_over(rig: Rig) -> None:
    rig.add()
    rig.nack(rig.take().id, delay=1000)
    rig.now += 999
    assert rig.reserve() == []
    rig.now += 1
    assert rig.take().attempt == 2


def test_a_delay_is_cut_to_the_horizon_of_the_queue(make_rig: MakeRig) -> None:
    rig = make_rig(config(QueueConfig("near", max_schedule_horizon_ms=50)))
    rig.add("near")
    rig.nack(rig.take("near").id, delay=10**14)
    rig.now += 50
    assert rig.take("near").attempt == 2


def test_a_nack_without_a_delay_waits_as_the_queue_says(make_rig: MakeRig) -> None:
    rig = make_rig(config(retry_delay_ms=1000))
    rig.add()
    rig.nack(rig.take().id)
    rig.now += 749
    assert rig.reserve() == []
    rig.now += 251
    assert rig.take().attempt == 2


def test_a_delay_of_zero_passes_the_policy_by(make_rig: MakeRig) -> None:
    rig = make_rig(config(retry_delay_ms=1000))
    rig.add()
    rig.nack(rig.take().id, delay=0)
    assert rig.take().attempt == 2


def test_the_last_attempt_is_the_last_whatever_the_nack_says(rig: Rig) -> None:
    rig.add(max_attempts=1)
    assert rig.nack(rig.take().id, delay=5)
    rig.add(max_attempts=5)
    assert rig.nack(rig.take().id, dead=True)
    assert rig.depth() == 0


# ---- Extend, expiry ----


def test_an_extension_counts_from_now(rig: Rig) -> None:
    """Trial 59."""
    job_id = rig.add()
    rig.take(lease=10_000)
    rig.now += 9_000
    assert rig.extend(job_id, lease=10_000) == START + 19_000
    rig.now += 1_000
    assert rig.extend(job_id, lease=1_000) == START + 11_000  # shorter than before
    assert rig.extend(job_id, lease=10**15) == START + 10_000 + 300_000
    rig.now = START + 309_999
    assert rig.reserve() == []
    assert rig.extend(job_id, lease=1) == START + 310_000
    rig.now += 1
    assert three_calls(rig, job_id, 1) == {"NOT_FOUND"}
    assert rig.take().attempt == 2


def test_an_extension_is_cut_to_the_jobs_own_queue(make_rig: MakeRig) -> None:
    rig = make_rig(config(QueueConfig("short", max_lease_duration_ms=100)))
    assert rig.extend(rig.add("short") and rig.take("short").id, lease=5000) == START + 100
    assert rig.extend(rig.add() and rig.take().id, lease=5000) == START + 5000


def test_a_lease_that_ends_gives_the_job_back_at_once(make_rig: MakeRig) -> None:
    rig = make_rig(config(retry_delay_ms=10_000))
    rig.add()
    rig.take(lease=100)
    rig.now += 99
    assert rig.reserve() == []
    rig.now += 1
    assert rig.take().attempt == 2


def test_attempts_count_over_nacks_and_expiries(rig: Rig) -> None:
    job_id = rig.add(max_attempts=3)
    rig.take(lease=10)
    rig.now += 10
    rig.nack(job_id, rig.take().attempt)
    assert rig.take(lease=10).attempt == 3
    rig.now += 10
    assert rig.reserve() == []
    assert rig.depth() == 0


def test_a_lease_given_back_unseen_spends_no_attempt(rig: Rig) -> None:
    rig.add(max_attempts=1)
    rig.add()
    with rig.batch():
        leases = rig.engine.reserve(ReservePlan(("q",), 0, 1000, 2), rig.now)
    rig.ack(str(uuid.UUID(bytes=leases[1].job_id)))
    with rig.batch():
        rig.engine.woken.clear()
        rig.engine.give_back(leases, rig.now)
        assert rig.engine.woken == {"q"}
    assert rig.take().attempt == 1
    assert rig.depth() == 1


def test_a_lease_that_ended_cannot_be_given_back(rig: Rig) -> None:
    rig.add()
    with rig.batch():
        leases = rig.engine.reserve(ReservePlan(("q",), 0, 10, 1), rig.now)
    rig.now += 10
    assert rig.take().attempt == 2
    with rig.batch():
        rig.engine.give_back(leases, rig.now)
    assert rig.reserve() == []


def test_a_lease_that_ended_is_over_even_if_nobody_swept(rig: Rig) -> None:
    """Trial 57: ack, nack and extend give the same answer at every moment."""
    job_id = rig.add()
    rig.take(lease=100)
    rig.engine.due_at = 2**63 - 1
    rig.now += 99
    rig.extend(job_id, lease=50)
    rig.engine.due_at = 2**63 - 1
    rig.now += 50
    assert three_calls(rig, job_id, 1) == {"NOT_FOUND"}


def test_what_is_left_of_a_sweep_is_due_at_once(make_rig: MakeRig) -> None:
    rig = make_rig(config(storage={"sweep_limit": 2}))
    rig.enqueue(*[job(scheduled_at=(START // 1000 + 1, 0))] * 5)
    rig.now += 1000
    with rig.store.transaction():
        rig.engine.sweep(rig.now)
        assert rig.engine.due_at <= rig.now
    assert len(rig.reserve(max_jobs=9)) == 5


def test_an_idle_broker_has_nothing_due(rig: Rig) -> None:
    rig.add()
    rig.ack(rig.take().id)
    rig.now += 300_000
    assert rig.reserve() == []
    assert rig.engine.due_at == 2**63 - 1
