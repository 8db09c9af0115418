"""One run of one worker program over a queue of jobs."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from ._programs import Result, RunError, module, run
from ._server import running_server
from .fill import fill

_LIMIT = 120.0
_READY = 1.5
"""Seconds until a worker waits for jobs: before, none trickle in, or they would wait for it."""


@dataclass(frozen=True)
class Workload:
    """Jobs, and how they are worked on."""

    jobs: int
    in_flight: int = 16
    auto_extend: bool = False
    payload: int = 200
    """Bytes."""
    sleep: float = 0.0
    """Seconds that each handler sleeps."""
    rate: float = 0.0
    """Jobs a second that trickle in; 0: all are there from the start."""

    def __str__(self) -> str:
        parts = [f"{self.in_flight} in flight", "auto-extend" if self.auto_extend else ""]
        parts += [f"{self.payload} bytes" if self.payload != 200 else ""]
        parts += [f"{self.rate:g}/s" if self.rate else "", f"{self.sleep} s" if self.sleep else ""]
        return ", ".join(filter(None, parts))


def run_worker(command: Sequence[str], work: Workload, server_kind: str) -> Result:
    """Run a worker program on a fresh server."""
    with running_server(server_kind) as server:
        there = ["--address", server.address, "--jobs", str(work.jobs)]
        arguments = ["--in-flight", str(work.in_flight), "--sleep", str(work.sleep)]
        arguments += ["--auto-extend"] * work.auto_extend
        if not work.rate:
            trio.run(lambda: fill(server.address, "bench", work.jobs, payload=work.payload, rate=0))
            return _finished(run([*command, *there, *arguments], _LIMIT), work)
        slowly = ["--payload", work.payload, "--rate", work.rate, "--after", _READY]
        producer = subprocess.Popen(
            module("fill", *there, *slowly), cwd=tempfile.gettempdir(), stdout=subprocess.DEVNULL
        )
        try:
            return _finished(run([*command, *there, *arguments], _LIMIT), work)
        finally:
            producer.kill()
            producer.wait()


def _finished(result: Result, work: Workload) -> Result:
    if result["jobs"] < work.jobs:
        raise RunError(f"{result['jobs']} of {work.jobs} jobs: {result}")
    if "idle_rss_mib" in result:
        grown = result["peak_rss_mib"] - result["idle_rss_mib"]
        result["kib_per_slot"] = grown * 1024 / work.in_flight
    # Of a program that does not measure its handlers: too low, for sleeps last a little longer
    # than asked, and its wall time includes the stop.
    share = result["jobs_per_s"] * work.sleep / work.in_flight
    result.setdefault("busy_share", share)
    return result
