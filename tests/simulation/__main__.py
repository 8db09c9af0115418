"""The long run: ``python -m tests.simulation --jobs 100000 --seed 0``; see ``nox -s simulate``."""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter

from .simulation import Report, simulate

_STOPS = ("drained", "with grace", "forced", "cancelled", "crashed")
_WRONG = (
    "lost",
    "wrong cause",
    "stranded",
    "left by a worker that returned",
    "not cancelled in time",
    "cancelled without a reason",
    "double runs",
)


def main() -> int:
    """Run seed after seed until so many jobs are through; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="simulate", description=main.__doc__)
    parser.add_argument("--jobs", type=int, default=100_000, help="in all (100000)")
    parser.add_argument("--each", type=int, default=4_000, help="jobs of one seed (4000)")
    parser.add_argument("--seed", type=int, default=0, help="the first one (0)")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    failed: list[int] = []
    whole = Report(options.seed, 0)
    seed = options.seed
    while whole.jobs < options.jobs:
        report = simulate(seed, min(options.each, options.jobs - whole.jobs))
        verdict = f"{len(report.complaints)} WRONG" if report.complaints else "ok"
        print(
            f"seed {seed}: {report.jobs} jobs, {report.virtual_seconds:.0f} s"
            f" in {report.real_seconds:.1f} s, {sum(report.faults.values())} faults,"
            f" digest {report.digest}, {verdict}",
            flush=True,
        )
        if report.complaints:
            failed.append(seed)
            print(report.failure(), flush=True)
        _add(whole, report)
        seed += 1
    _print_figures(whole, seed - options.seed)
    if failed:
        print(f"failed: {failed}; one again: --seed {failed[0]} --jobs {options.each}")
    return 1 if failed else 0


def _add(whole: Report, report: Report) -> None:
    whole.jobs += report.jobs
    whole.virtual_seconds += report.virtual_seconds
    whole.real_seconds += report.real_seconds
    whole.counts += report.counts
    whole.faults += report.faults
    whole.figures += report.figures
    whole.complaints += report.complaints


def _print_figures(whole: Report, seeds: int) -> None:
    print(
        f"{whole.jobs} jobs, {seeds} seeds, {whole.virtual_seconds / 3600:.1f} virtual hours"
        f" in {whole.real_seconds:.0f} s"
    )
    _print_counts("jobs", _named(whole.counts, "job "))
    _print_counts("deliveries", _named(whole.counts, "lease "))
    _print_counts("handlers", _named(whole.counts, "handler "))
    _print_counts("calls", _named(whole.counts, "call "))
    _print_counts("faults", whole.faults)
    _print_counts("stops", Counter({name: whole.counts[f"stop: {name}"] for name in _STOPS}))
    _print_counts("leases that ran out", _named(whole.figures, "leases run out: "))
    _print_counts("double runs that must be", _named(whole.figures, "double runs: "))
    _print_counts("wrong", Counter({name: whole.figures[name] for name in _WRONG}))
    print(f"complaints: {len(whole.complaints)}")


def _named(counts: Counter[str], prefix: str) -> Counter[str]:
    return Counter(
        {
            name.removeprefix(prefix): count
            for name, count in counts.items()
            if name.startswith(prefix)
        }
    )


def _print_counts(title: str, counts: Counter[str]) -> None:
    print(f"{title}: " + ", ".join(f"{count} {name}" for name, count in counts.most_common()))


if __name__ == "__main__":
    sys.exit(main())
