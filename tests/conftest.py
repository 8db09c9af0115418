"""What holds for every test: the Hypothesis profiles, and a served embedded server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

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


@pytest.fixture(scope="session")
def served_address() -> Iterator[str]:
    """The address of a `sepp-trio serve` process, with its jobs in memory."""
    command = [sys.executable, "-m", "sepp_trio", "serve", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().removeprefix("listening on ").strip()
        finally:
            server.terminate()
