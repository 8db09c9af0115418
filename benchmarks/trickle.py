"""Jobs that trickle in, 200 a second: CPU a job, and the way from enqueue to handler."""

from __future__ import annotations

from ._figures import Scale, Section
from ._measure import spread
from ._program import program
from ._worker_runs import Workload
from .compare import take_turns

OURS, PY, RUST = "sepp-trio", "sepp-py", "sepp-rs"
P50, P99 = "latency_p50_ms", "latency_p99_ms"


def sections(scale: Scale) -> list[Section]:
    """Without and with auto-extend."""
    jobs = 60 if scale.smoke else 600
    works = [Workload(jobs, 16, on, rate=200.0) for on in (False, True)]
    figures = take_turns(works[-1:] if scale.smoke else works, (PY, OURS, RUST), scale)
    head = ("auto-extend", "worker", "p50 ms", "p99 ms", "CPU µs a job", "ours ÷ it")
    section = Section("Enqueue to handler, 200 jobs a second, 16 slots", head)
    for work in works:
        name = "on" if work.auto_extend else "off"
        for peer in (PY, OURS, RUST):
            row = [name, peer]
            row += [figures.cell(work, peer, figure) for figure in (P50, P99, "cpu_us_per_job")]
            ratios = figures.ratios(work, "cpu_us_per_job", OURS, peer)
            section.rows.append([*row, spread(ratios) if ratios else "–"])
        what = f"trickle, auto-extend {name}:"
        cpu = figures.ratios(work, "cpu_us_per_job", OURS, PY)
        section.at_most(f"{what} CPU a job ÷ sepp-py", cpu, 0.5)
        mine, rust = (figures.values(work, peer, P50) for peer in (OURS, RUST))
        behind = [a - b for a, b in zip(mine, rust, strict=False)]
        section.at_most(f"{what} p50 less sepp-rs's", behind, 0.15, " ms")
        section.at_most(f"{what} p99 ÷ sepp-rs's", figures.ratios(work, P99, OURS, RUST), 1.3)
    return [section]


if __name__ == "__main__":
    program(__doc__, sections)
