"""Worker programs and signals, in processes of their own on real time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio

from sepp_trio import ReserveOptions, open_client

pytestmark = pytest.mark.slow


@contextmanager
def program(address: str, queue: str, jobs: int, seconds: float) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.worker.signal_program"]
    process = subprocess.Popen(
        [*command, address, queue, str(jobs), str(seconds)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def lines_until(process: subprocess.Popen[str], word: str) -> list[list[str]]:
    assert process.stdout is not None
    lines = []
    while not lines or lines[-1][0] != word:
        # By the byte: what a buffer took beyond the line would be lost to communicate().
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(process.stdout.fileno(), 1)
            if not byte:
                return lines
            line += byte
        lines.append(line.decode().split())
    return lines


def ready_jobs(address: str, queue: str) -> dict[str, int]:
    """Jobs that wait for a worker now, with their attempts."""

    async def take() -> dict[str, int]:
        async with open_client(address) as client:
            options = ReserveOptions([queue], 60, wait_timeout=0, max_jobs=100)
            return {job.id: job.attempt for job in await client.reserve(options)}

    return trio.run(take)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("pause", [0.0, 0.05, 0.2])
def test_the_first_signal_drains(served_address: str, number: signal.Signals, pause: float) -> None:
    queue = f"q-{uuid.uuid4()}"
    with program(served_address, queue, 12, 0.3) as process:
        lines_until(process, "ready")
        time.sleep(pause)
        process.send_signal(number)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in errors
    events = [line.split() for line in output.splitlines()]
    started = {event[1] for event in events if event[0] == "start"}
    ended = {event[1] for event in events if event[0] == "end"}
    assert started == ended
    assert events[-1] == ["returned", "True"]
    left = ready_jobs(served_address, queue)
    assert len(left) == 12 - len(ended)
    assert set(left.values()) <= {1}


def test_the_second_signal_forces(served_address: str) -> None:
    queue = f"q-{uuid.uuid4()}"
    with program(served_address, queue, 3, 600) as process:
        lines_until(process, "start")
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "Traceback" not in errors
    assert output.splitlines()[-1] == "returned False"
    # All are back at once, each with one attempt spent.
    assert sorted(ready_jobs(served_address, queue).values()) == [2, 2, 2]
