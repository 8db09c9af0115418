"""The command line and the JSON line that every measured worker program shares."""

from __future__ import annotations

import argparse
import time

from ._measure import cpu_seconds, percentile, report, resident_mib


def arguments(description: str) -> argparse.Namespace:
    """Parse what ``compare.py`` hands to a worker program."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--address", required=True)
    parser.add_argument("--queue", default="bench")
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--in-flight", type=int, default=16)
    parser.add_argument("--auto-extend", action="store_true")
    parser.add_argument("--lease", type=float, default=30.0, help="seconds")
    parser.add_argument("--sleep", type=float, default=0.0, help="seconds each handler sleeps")
    parser.add_argument("--timeout", type=float, default=120.0, help="give up after this")
    return parser.parse_args()


class Costs:
    """CPU of the whole run, wall time up to the end of the last handler, each job's wait."""

    def __init__(self) -> None:
        self._began, self._cpu = time.perf_counter(), cpu_seconds()
        self._ended = self._began
        self.waited: list[float] = []

    def handler_ended(self) -> None:
        """Call it at the end of each handler."""
        # A worker that is told to stop may wait for an empty reserve yet: that is no throughput.
        self._ended = time.perf_counter()

    def report(self, peer: str, args: argparse.Namespace) -> None:
        """Print the JSON line, once the worker has returned."""
        cpu, wall, jobs = cpu_seconds() - self._cpu, self._ended - self._began, len(self.waited)
        report(
            peer=peer,
            jobs=jobs,
            in_flight=args.in_flight,
            auto_extend=args.auto_extend,
            cpu_us_per_job=cpu * 1e6 / jobs,
            jobs_per_s=jobs / wall,
            busy_share=args.sleep * jobs / (args.in_flight * wall),
            wait_p50_ms=percentile(self.waited, 0.50),
            wait_p99_ms=percentile(self.waited, 0.99),
            peak_rss_mib=resident_mib(peak=True),
        )
