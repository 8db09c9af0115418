"""The simulation finds mistakes: each is planted here, and has to come to light."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from sepp_trio import HandlerError
from sepp_trio.lease import HeldLease, _held
from sepp_trio.worker._poll import Poller
from sepp_trio.worker._reports import Reports
from sepp_trio.worker._slots import Slots
from tests.simulation.simulation import Report, Weather, simulate

pytestmark = pytest.mark.slow

CALM = Weather(network=1e9, server=1e9, calls=1e9, stops=15)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def complaints(weather: Weather = CALM, jobs: int = 200, about: str = "") -> str:
    """What is wrong in the first seed in which anything is that matches ``about``."""
    for seed in range(2, 6):
        report: Report = simulate(seed, jobs, processes=4, weather=weather)
        texts = "\n".join(text for _, text in report.complaints)
        if texts and re.search(about, texts):
            return texts
    return ""


def test_a_handler_that_is_cancelled_after_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_held, "margin_of", lambda length: -0.5)
    assert "ran on until" in complaints()


def test_a_stop_that_forgets_to_give_jobs_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reports, "give_back", lambda self, job, reason: job.lease.close())
    assert "stranded" in complaints()


def test_a_job_that_is_dropped_at_its_receipt(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Poller._answered

    def drop_the_last(self: Poller, response: Any, error: Any) -> None:
        if response is not None and len(response.jobs) > 2:
            response.jobs.pop()
        take(self, response, error)

    monkeypatch.setattr(Poller, "_answered", drop_the_last)
    assert "stranded" in complaints()


def test_a_failure_that_counts_as_success(monkeypatch: pytest.MonkeyPatch) -> None:
    report = Reports.report

    def forgive(self: Reports, job: Any, error: Any, now: float) -> None:
        report(self, job, None if isinstance(error, HandlerError) else error, now)

    monkeypatch.setattr(Reports, "report", forgive)
    assert "ended as acked, which is not right" in complaints()


def test_a_slot_that_does_not_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    end = Slots.ended

    def leak(self: Slots, entry: Any, duration: float, now: float) -> None:
        end(self, entry, duration, now)
        if duration > 5:
            self.running += 1

    monkeypatch.setattr(Slots, "ended", leak)
    assert "returned with" in complaints()


def test_a_report_for_a_lost_job(monkeypatch: pytest.MonkeyPatch) -> None:
    report = Reports.report

    def report_anyway(self: Reports, job: Any, error: Any, now: float) -> None:
        lease: HeldLease = job.lease
        lease.check(now)
        lease.lost = lease.cancel_reason = None
        report(self, job, error, now)

    monkeypatch.setattr(Reports, "report", report_anyway)
    stormy = Weather(network=3, server=1e9, calls=1e9)
    assert complaints(stormy, 500, about="although it was over|after the lease's end")
