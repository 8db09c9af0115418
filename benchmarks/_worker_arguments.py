"""The command line and the JSON line that every measured worker program shares."""

from __future__ import annotations

import argparse

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
    """Wall time and CPU from ``start`` to ``finish``, divided by the jobs."""

    def __init__(self, clock: float) -> None:
        self.began, self.cpu = clock, cpu_seconds()
        self.waited: list[float] = []

    def finish(self, peer: str, args: argparse.Namespace, clock: float) -> None:
        """Print the JSON line."""
        cpu, wall, jobs = cpu_seconds() - self.cpu, clock - self.began, len(self.waited)
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
