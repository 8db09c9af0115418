"""The short run of the simulation; the long one is ``nox -s simulate``."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.simulation import Weather, simulate

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of failures on purpose would each leave a traceback."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_stranded_or_done_twice(seed: int) -> None:
    report = simulate(seed, 250)
    assert not report.complaints, report.failure()
    assert report.counts["job acked"] > 120


def test_a_seed_gives_the_same_run_in_any_process() -> None:
    code = (
        "import logging; logging.disable(logging.CRITICAL);"
        "from tests.simulation.simulation import simulate; print(simulate(7, 60).digest)"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("1", "2")
    }
    assert digests == {simulate(7, 60).digest}


def test_a_failure_names_the_seed_the_job_and_the_plan() -> None:
    report = simulate(3, 40, processes=2, weather=Weather(calls=5))
    job_id = next(iter(report.all_stories))
    report.complaints.append((job_id, "made up"))
    text = report.failure()
    assert text.startswith("seed 3, 40 jobs")
    assert f"- {job_id}: made up" in text
    assert "enqueued, no. " in text
    assert "FaultPlan((" in text
