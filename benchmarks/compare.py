"""Our worker beside sepp-py's on the same server and the same jobs, as a ratio.

Each run gets a fresh server, the same jobs and a process of its own; the peers take
turns inside every round, so that a slow minute of a shared machine hits both. Quote
medians and ratios, never single runs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
from pathlib import Path

from ._measure import spread
from ._server import real_binary, running_server

ROOT = Path(__file__).resolve().parent.parent
PEERS = {"sepp-py": "benchmarks.worker_sepp_py", "sepp-trio": "benchmarks.worker_sepp_trio"}
COLUMNS = {
    "CPU µs a job": "cpu_us_per_job",
    "jobs a second": "jobs_per_s",
    "peak RSS MiB": "peak_rss_mib",
    "server CPU µs a job": "server_cpu_us_per_job",
}
Result = dict[str, float]


def run_once(peer: str, in_flight: int, auto_extend: bool, args: argparse.Namespace) -> Result:
    """One worker process on one fresh server, over a full or a trickling queue."""
    shape = ["--payload", str(args.payload), "--rate", str(args.rate)]
    load = ["--jobs", str(args.jobs)]
    with running_server(args.server) as server:
        producer = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.fill", "--address", server.address, *load, *shape],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
        )
        try:
            if not args.rate and producer.wait(args.limit):
                raise SystemExit("the queue could not be filled")
            before = server.cpu_seconds()
            done = subprocess.run(
                [sys.executable, "-m", PEERS[peer], "--address", server.address, *load]
                + ["--in-flight", str(in_flight), "--sleep", str(args.sleep)]
                + ["--timeout", str(args.limit)]
                + ["--auto-extend"] * auto_extend,
                cwd=ROOT,
                capture_output=True,
                text=True,
                timeout=args.limit + 10,
            )
            if done.returncode:
                raise SystemExit(f"{peer} ended with {done.returncode}:\n{done.stderr[-3000:]}")
            result: Result = json.loads(done.stdout.splitlines()[-1])
            result["server_cpu_us_per_job"] = (server.cpu_seconds() - before) * 1e6 / args.jobs
            return result
        finally:
            producer.kill()
            producer.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
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
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one run")
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), default=list(PEERS))
    args = parser.parse_args()
    args.server = args.server or ("real" if real_binary() else "embedded")

    extends = {"off": [False], "on": [True], "both": [False, True]}[args.auto_extend]
    cases = list(itertools.product(args.in_flight, extends))
    runs: dict[tuple[int, bool, str], list[Result]] = {}
    for _ in range(args.rounds):
        for (in_flight, extend), peer in itertools.product(cases, args.peers):
            result = run_once(peer, in_flight, extend, args)
            runs.setdefault((in_flight, extend, peer), []).append(result)
            print(
                f"{peer}, {in_flight} in flight, auto-extend {'on' if extend else 'off'}: "
                f"{result['cpu_us_per_job']:.0f} µs",
                file=sys.stderr,
            )

    columns = dict(COLUMNS)
    if args.rate:  # on a queue that was full before, a wait tells only the job's place
        columns |= {"wait p50 ms": "wait_p50_ms", "wait p99 ms": "wait_p99_ms"}
    if args.sleep:
        columns["busy share"] = "busy_share"
    print(f"{args.server} server, {args.jobs} jobs of {args.payload} bytes, {args.rounds} rounds")
    print()
    print("| in flight | auto-extend | worker | ratio | " + " | ".join(columns) + " |")
    print("|" + "---|" * (4 + len(columns)))
    for (in_flight, extend), peer in itertools.product(cases, args.peers):
        mine, first = runs[in_flight, extend, peer], runs[in_flight, extend, args.peers[0]]
        ratio = statistics.median(
            a["cpu_us_per_job"] / b["cpu_us_per_job"] for a, b in zip(mine, first, strict=True)
        )
        cells = [str(in_flight), "on" if extend else "off", peer, f"{ratio:.2f}"]
        cells += [spread([run[name] for run in mine]) for name in columns.values()]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
