"""What enqueueing costs our client, beside sepp-py's: 1, 16 and 256 callers, and batches."""

from __future__ import annotations

import functools
import itertools

from ._figures import Figures, Scale, Section
from ._measure import spread
from ._program import program
from ._programs import Result, module, run
from ._server import running_server

OURS, PY = "sepp-trio", "sepp-py"
_PROGRAMS = {PY: "enqueue_sepp_py", OURS: "enqueue_sepp_trio"}
_WAYS = {
    "1 caller": "callers_1",
    "16 callers": "callers_16",
    "256 callers": "callers_256",
    "1 caller, batches of 100": "batch",
}
_MANY = "enqueue_many, batches of 100"


def sections(scale: Scale) -> list[Section]:
    """All ways, one after the other in one process."""
    figures = Figures(scale)
    jobs = 500 if scale.smoke else 5000
    for _, (peer, name) in itertools.product(range(scale.rounds), _PROGRAMS.items()):
        figures.take("enqueue", peer, functools.partial(_run, name, jobs, scale.server))
    head = ("way", "sepp-py, µs", "ours, µs", "ours ÷ sepp-py", "jobs/s sepp-py", "jobs/s ours")
    section = Section("CPU of enqueueing a job of 200 bytes", head)
    for way, name in _WAYS.items():
        ratios = figures.ratios("enqueue", f"{name}_us", OURS, PY)
        _row(section, figures, way, name, name, ratios)
        if name != "batch":
            section.at_most(f"enqueue, {way}, ÷ sepp-py", ratios, 0.4)
    # sepp-py has none: its batches are what it is held against.
    mine, theirs = (
        figures.values("enqueue", OURS, "many_us"),
        figures.values("enqueue", PY, "batch_us"),
    )
    ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
    _row(section, figures, _MANY, "batch", "many", ratios)
    return [section]


def _run(name: str, jobs: int, server_kind: str) -> Result:
    with running_server(server_kind) as server:
        return run(module(name, "--address", server.address, "--jobs", jobs), 120)


def _row(
    section: Section, figures: Figures, way: str, py: str, ours: str, ratios: list[float]
) -> None:
    row = [
        way,
        figures.cell("enqueue", PY, f"{py}_us"),
        figures.cell("enqueue", OURS, f"{ours}_us"),
    ]
    row += [spread(ratios), figures.cell("enqueue", PY, f"{py}_per_s")]
    section.rows.append([*row, figures.cell("enqueue", OURS, f"{ours}_per_s")])


if __name__ == "__main__":
    program(__doc__, sections)
