"""What every test can use: a served embedded server. And the conformance suite's summary."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

# Here, where it is found before anything is collected: pytest-xdist's controller collects nothing.
from tests.conformance.summary import pytest_terminal_summary  # noqa: F401


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
