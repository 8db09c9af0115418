"""What a job costs our worker, beside sepp-py's, the bare loop and the Rust worker."""

from __future__ import annotations

from ._figures import Figures, Scale, Section
from ._measure import spread
from ._program import program
from ._worker_runs import Workload
from .compare import take_turns

OURS, PY, BARE, RUST = "sepp-trio", "sepp-py", "bare loop", "sepp-rs"
CPU = "cpu_us_per_job"
HEAD = (
    "in flight", "auto-extend", "sepp-py, µs", "ours, µs", "ours ÷ sepp-py", "ours ÷ bare loop",
    "ours ÷ sepp-rs", "jobs/s sepp-py", "jobs/s ours", "KiB a slot sepp-py", "KiB a slot ours",
)  # fmt: skip

_JOBS = {1: 1500, 16: 5000, 256: 8000, 4096: 12_000}
_LARGE = 64 * 1024


def sections(scale: Scale) -> list[Section]:
    """Small jobs at all sizes, then large ones."""
    sizes = {16: 1000} if scale.smoke else _JOBS
    small = [Workload(jobs, size, on) for size, jobs in sizes.items() for on in (False, True)]
    large = [Workload(200 if scale.smoke else 1500, size, payload=_LARGE) for size in (16, 32)]
    figures = take_turns(small[-1:] if scale.smoke else small, (PY, OURS, BARE, RUST), scale)
    first = Section("CPU of a job of 200 bytes whose handler returns at once", HEAD)
    for work in small:
        _row(first, figures, work)
        what = f"CPU a job, {_name(work)}"
        first.at_most(f"{what}, ÷ sepp-py", figures.ratios(work, CPU, OURS, PY), 0.35)
        if work.in_flight in (16, 256):
            first.at_most(f"{what}, ÷ bare loop", figures.ratios(work, CPU, OURS, BARE), 1.0)
        first.at_most(f"{what}, ÷ sepp-rs", figures.ratios(work, CPU, OURS, RUST), 2.0)
    for on in (False, True):
        many, few = (
            figures.values(Workload(_JOBS[size], size, on), OURS, CPU) for size in (4096, 256)
        )
        grown = [a / b for a, b in zip(many, few, strict=True)]
        name = "on" if on else "off"
        first.at_most(f"CPU a job, auto-extend {name}, 4,096 ÷ 256 in flight", grown, 1.15)

    figures = take_turns(large[:1] if scale.smoke else large, (PY, OURS, RUST), scale)
    second = Section("CPU of a job of 64 KiB", HEAD)
    for work in large:
        _row(second, figures, work)
        ratios = figures.ratios(work, CPU, OURS, PY)
        second.at_most(f"CPU a job of 64 KiB, {work.in_flight} in flight, ÷ sepp-py", ratios, 0.55)
    return [first, second]


def _name(work: Workload) -> str:
    return f"{work.in_flight:,} in flight, auto-extend {'on' if work.auto_extend else 'off'}"


def _row(section: Section, figures: Figures, work: Workload) -> None:
    row = [f"{work.in_flight:,}", "on" if work.auto_extend else "off"]
    row += [figures.cell(work, peer, CPU) for peer in (PY, OURS)]
    for peer in (PY, BARE, RUST):
        ratios = figures.ratios(work, CPU, OURS, peer)
        row.append(spread(ratios) if ratios else "–")
    row += [figures.cell(work, peer, "jobs_per_s") for peer in (PY, OURS)]
    row += [figures.cell(work, peer, "kib_per_slot") for peer in (PY, OURS)]
    section.rows.append(row)


if __name__ == "__main__":
    program(__doc__, sections)
