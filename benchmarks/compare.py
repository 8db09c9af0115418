"""Any workload of your own: the worker programs beside one another, in turns.

    python -m benchmarks.compare --in-flight 16 256 --auto-extend on --sleep 0.01 --rounds 3

Each run gets a fresh server, the same jobs and a process of its own; the programs take turns
inside every round, so that a slow minute of a shared machine hits all of them. Quote medians and
ratios, never single runs. The first program is the one that ratios refer to.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import statistics
from collections.abc import Sequence

from ._figures import Figures, Scale, table
from ._programs import workers
from ._server import real_binary
from ._worker_runs import Workload, run_worker

COLUMNS = {
    "CPU µs a job": "cpu_us_per_job",
    "jobs a second": "jobs_per_s",
    "peak RSS MiB": "peak_rss_mib",
}


def take_turns(works: Sequence[Workload], peers: Sequence[str], scale: Scale) -> Figures:
    """Run every program over every workload, round after round."""
    figures, commands = Figures(scale), workers()
    for _ in range(scale.rounds):
        for work, peer in itertools.product(works, peers):
            if peer in commands:
                one = functools.partial(run_worker, commands[peer], work, scale.server)
                figures.take(work, peer, one)
    return figures


def main() -> None:
    known = list(workers())
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--server", choices=["real", "embedded", "memory"], help="default: real if found"
    )
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 16, 256])
    parser.add_argument("--auto-extend", choices=["off", "on", "both"], default="both")
    parser.add_argument("--payload", type=int, default=200, help="bytes")
    parser.add_argument("--sleep", type=float, default=0.0, help="seconds each handler sleeps")
    parser.add_argument(
        "--rate", type=float, default=0.0, help="jobs a second trickle in; 0: all at once"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", nargs="+", choices=known, default=known[:2])
    args = parser.parse_args()
    server = args.server or ("real" if real_binary() else "embedded")
    extends = {"off": [False], "on": [True], "both": [False, True]}[args.auto_extend]
    works = [
        Workload(args.jobs, in_flight, extend, args.payload, args.sleep, args.rate)
        for in_flight, extend in itertools.product(args.in_flight, extends)
    ]
    figures = take_turns(works, args.peers, Scale(args.rounds, server=server))

    columns = dict(COLUMNS)
    if args.rate:  # on a queue that was full before, a wait tells only the job's place
        columns |= {"wait p50 ms": "latency_p50_ms", "wait p99 ms": "latency_p99_ms"}
    rows = []
    for work, peer in itertools.product(works, args.peers):
        ratio = statistics.median(figures.ratios(work, "cpu_us_per_job", peer, args.peers[0]))
        rows.append([str(work), peer, f"{ratio:.2f}"])
        rows[-1] += [figures.cell(work, peer, name) for name in columns.values()]
    print(f"{server} server, {args.jobs} jobs of {args.payload} bytes, {args.rounds} rounds\n")
    print(table(["workload", "worker", "ratio", *columns], rows))


if __name__ == "__main__":
    main()
