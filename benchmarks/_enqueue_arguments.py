"""The command line and the JSON line that the measured producers share."""

from __future__ import annotations

import argparse
import time

from ._measure import cpu_seconds, report


def arguments(description: str) -> argparse.Namespace:
    """Parse what a producer program is told."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--address", required=True)
    parser.add_argument("--queue", default="bench")
    parser.add_argument("--jobs", type=int, default=5000)
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 16, 256])
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--payload", type=int, default=200, help="bytes")
    return parser.parse_args()


class Costs:
    """CPU and time of each way to enqueue, one after the other in one process."""

    def __init__(self) -> None:
        self._figures: dict[str, float] = {}
        self.start()

    def start(self) -> None:
        """A way begins."""
        self._began, self._cpu = time.perf_counter(), cpu_seconds()

    def end(self, way: str, jobs: int) -> None:
        """It has ended."""
        cpu, wall = cpu_seconds() - self._cpu, time.perf_counter() - self._began
        self._figures |= {f"{way}_us": cpu * 1e6 / jobs, f"{way}_per_s": jobs / wall}

    def report(self) -> None:
        """Print the JSON line."""
        report(**self._figures)
