"""The command line and the JSON line of the programs that hold many jobs."""

from __future__ import annotations

import argparse
import collections
import time

from ._measure import cpu_seconds, report, resident_mib


def arguments(description: str) -> argparse.Namespace:
    """Parse what such a program is told."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--address", required=True)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--lease", type=float, default=30.0, help="seconds")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to hold them")
    parser.add_argument(
        "--limit",
        type=float,
        default=20.0,
        help="until all are there, or else it begins with fewer",
    )
    return parser.parse_args()


class Costs:
    """What it costs to hold the jobs, from when all are there; runs and losses of each."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._jobs: int = args.jobs
        self.runs: collections.Counter[str] = collections.Counter()
        self.lost = 0
        self._idle = resident_mib()
        self._figures: dict[str, float] = {}
        self._began, self._cpu = time.perf_counter(), 0.0

    def started(self, job_id: str) -> bool:
        """A handler runs; whether all jobs are there now."""
        self.runs[job_id] += 1
        return len(self.runs) == self._jobs

    def all_there(self) -> None:
        """From here on, CPU is counted."""
        now = time.perf_counter()
        self._figures["ramp_s"] = now - self._began
        self._began, self._cpu = now, cpu_seconds()

    def held(self) -> None:
        """Up to here, CPU is counted."""
        cpu, wall = cpu_seconds() - self._cpu, time.perf_counter() - self._began
        jobs = self._jobs
        self._figures["core_percent"] = cpu / wall * 100
        self._figures["kib_per_job"] = (resident_mib() - self._idle) * 1024 / jobs
        self._figures["kib_per_job_peak"] = (resident_mib(peak=True) - self._idle) * 1024 / jobs

    def report(self, **more: float) -> None:
        """Print the JSON line."""
        twice = sum(count > 1 for count in self.runs.values())
        held = len(self.runs)
        report(**self._figures, **more, held=held, lost_leases=self.lost, run_twice=twice)
