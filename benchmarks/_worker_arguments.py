"""The command line and the JSON line that every measured worker program shares."""

from __future__ import annotations

import argparse
import time

from ._measure import cpu_seconds, percentile, report, resident_mib, waited_ms


def arguments(description: str) -> argparse.Namespace:
    """Parse what a worker program is told."""
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
    """CPU of the whole run, wall time up to the last ack, each job's wait.

    Made right before ``run()`` begins; ``report`` comes right after its return.
    """

    def __init__(self) -> None:
        self.waited: list[float] = []
        self._slept = 0.0
        self._idle = resident_mib()
        self._first_at = 0
        self._handled = self._acked = 0.0
        self._began, self._cpu = time.perf_counter(), cpu_seconds()

    def started(self, payload: bytes) -> int:
        """Call it first in each handler: how many there were so far."""
        if not self.waited:
            self._first_at = time.monotonic_ns()
        self.waited.append(waited_ms(payload))
        return len(self.waited)

    def slept(self, began: float) -> None:
        """Call it in each handler that sleeps, when it has, with ``time.perf_counter()`` before."""
        self._slept += time.perf_counter() - began

    def handler_ended(self) -> None:
        """Call it last in each handler."""
        self._handled = time.perf_counter()

    def acked(self) -> None:
        """The last ack was answered; the run's own end if nobody says so."""
        self._acked = time.perf_counter()

    def report(self, peer: str, args: argparse.Namespace) -> None:
        """Print the JSON line, once the worker has returned."""
        cpu, jobs = cpu_seconds() - self._cpu, len(self.waited)
        if not self._acked:
            self.acked()
        busy = self._slept / (args.in_flight * (self._handled - self._began))
        report(
            peer=peer,
            jobs=jobs,
            cpu_us_per_job=cpu * 1e6 / jobs,
            jobs_per_s=jobs / (self._acked - self._began),
            busy_share=busy,
            latency_p50_ms=percentile(self.waited, 0.50),
            latency_p99_ms=percentile(self.waited, 0.99),
            peak_rss_mib=resident_mib(peak=True),
            idle_rss_mib=self._idle,
            first_job_ns=self._first_at,
        )
