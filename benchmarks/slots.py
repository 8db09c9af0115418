"""How busy 16 slots are kept with handlers of 10 ms: handler time ÷ (slots × wall time)."""

from __future__ import annotations

from ._figures import Scale, Section
from ._program import program
from ._worker_runs import Workload
from .compare import take_turns

OURS, PY, RUST = "sepp-trio", "sepp-py", "sepp-rs"


def sections(scale: Scale) -> list[Section]:
    """With auto-extend, which lets our worker reserve ahead, and without."""
    jobs = 300 if scale.smoke else 4000
    works = [Workload(jobs, 16, on, sleep=0.01) for on in (True, False)]
    figures = take_turns(works[:1] if scale.smoke else works, (PY, OURS, RUST), scale)
    head = ("auto-extend", "worker", "busy share", "jobs a second", "CPU µs a job")
    section = Section("16 slots, handlers of 10 ms (at most 1,600 jobs a second)", head)
    for work in works:
        for peer in (PY, OURS, RUST):
            names = ("busy_share", "jobs_per_s", "cpu_us_per_job")
            cells = [figures.cell(work, peer, name) for name in names]
            section.rows.append(["on" if work.auto_extend else "off", peer, *cells])
    if busy := figures.values(works[0], OURS, "busy_share"):
        section.at_least("busy share, 16 slots, 10 ms, auto-extend on", busy, 0.93)
    return [section]


if __name__ == "__main__":
    program(__doc__, sections)
