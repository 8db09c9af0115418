"""What it costs one worker to hold 10,000 jobs whose leases it extends, and whether it can."""

from __future__ import annotations

import functools

import trio

from ._figures import Figures, Scale, Section
from ._program import program
from ._programs import Result, module, run
from ._server import running_server
from .fill import fill

OURS, PY = "sepp-trio", "sepp-py"
_PROGRAMS = {PY: "hold_sepp_py", OURS: "hold_sepp_trio"}
_COLUMNS = {
    "share of a core, %": "core_percent",
    "KiB a job": "kib_per_job",
    "KiB a job, peak": "kib_per_job_peak",
    "loop late, ms": "late_ms",
    "without full GC, ms": "late_without_gc_ms",
    "lost": "lost_leases",
    "run twice": "run_twice",
}


def sections(scale: Scale) -> list[Section]:
    """Leases of 30 and of 2 seconds. No target is a ratio to sepp-py: one round of it will do."""
    jobs = 500 if scale.smoke else 10_000
    cases = {f"{lease} s": lease for lease in ((2,) if scale.smoke else (30, 2))}
    figures = Figures(scale)
    for turn in range(scale.rounds):
        for case, lease in cases.items():
            for peer, name in _PROGRAMS.items():
                if peer == PY and turn:
                    continue
                hold = functools.partial(_hold, name, jobs, lease, scale)
                figures.take(case, peer, hold)
    section = Section(f"{jobs:,} jobs held, auto-extend on", ("lease", "worker", *_COLUMNS))
    for case in cases:
        for peer in _PROGRAMS:
            cells = [figures.cell(case, peer, name) for name in _COLUMNS.values()]
            section.rows.append([case, peer, *cells])
    what = f"{jobs:,} leases of"
    if "30 s" in cases:
        held = {name: figures.values("30 s", OURS, name) for name in _COLUMNS.values()}
        section.at_most(f"{what} 30 s, share of a core", held["core_percent"], 3.5, " %")
        section.at_most(f"{what} 30 s, KiB a job", held["kib_per_job"], 6)
        section.at_most(f"{what} 30 s, KiB a job at the peak", held["kib_per_job_peak"], 7)
        section.at_most(f"{what} 30 s, loop late at most", held["late_ms"], 20, " ms")
        late = held["late_without_gc_ms"]
        section.at_most(f"{what} 30 s, loop late, full GC apart", late, 20, " ms")
        section.at_most(f"{what} 30 s, lost", held["lost_leases"], 0, each=True)
    lost = figures.values("2 s", OURS, "lost_leases")
    section.at_most(f"{what} 2 s, lost in any round", lost, 0, each=True)
    return [section]


def _hold(name: str, jobs: int, lease: int, scale: Scale) -> Result:
    # An interval of the longer lease; several of the shorter one.
    seconds = 1 if scale.smoke else 10 if lease == 30 else 5
    with running_server(scale.server) as server:
        trio.run(lambda: fill(server.address, "bench", jobs, payload=200, rate=0))
        what = ("--jobs", jobs, "--lease", lease, "--seconds", seconds)
        return run(module(name, "--address", server.address, *what), 120)


if __name__ == "__main__":
    program(__doc__, sections)
