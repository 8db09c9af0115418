"""What holds for the tests and the examples: Hypothesis profiles, and how they run in parallel."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# In CI the same examples every time: a failure there is a change's, not the dice's.
settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    max_examples=100,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],  # shared machines
)
settings.register_profile("dev", deadline=None, max_examples=200)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """pytest-xdist sends reports as UTF-8, which has nothing for a lone surrogate in a log."""
    report = yield
    report.sections = [
        (title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections
    ]
    return report


# Work against the real clock. Both wait more than they work, and so get along on two cores; all
# else comes when they have ended.
_TOGETHER = ("tests/conformance/", "tests/faults/")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With pytest-xdist's ``-n``: each of these rooms in one process, one test after the other."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            # The largest scopes come first.
            return next((room for room in _TOGETHER if nodeid.startswith(room)), nodeid)

    return Scheduling(config, log)
