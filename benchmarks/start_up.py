"""How long the import takes, and from the start of a process to its first handled job."""

from __future__ import annotations

import functools
import itertools
import sys
import time

import trio

from ._figures import Figures, Scale, Section
from ._program import program
from ._programs import Result, run, workers
from ._server import running_server
from .fill import fill

OURS, PY = "sepp-trio", "sepp-py"
_PACKAGES = {PY: "sepp", OURS: "sepp_trio"}
_IMPORT = """
import json, time
wall, cpu = time.perf_counter(), time.process_time()
import {package}
print(json.dumps({{"wall_ms": (time.perf_counter() - wall) * 1e3,
                  "cpu_ms": (time.process_time() - cpu) * 1e3}}))
"""


def sections(scale: Scale) -> list[Section]:
    """Import alone, then the whole way to a job."""
    figures = Figures(scale)
    for peer in _PACKAGES:  # compiles
        _import(peer)
        _first_job(peer, scale.server)
    for _, peer in itertools.product(range(2 * scale.rounds), _PACKAGES):
        figures.take("import", peer, functools.partial(_import, peer))
    for _, peer in itertools.product(range(scale.rounds), _PACKAGES):
        figures.take("first job", peer, functools.partial(_first_job, peer, scale.server))
    head = ("worker", "import, ms", "import, CPU ms", "process to first handled job, ms")
    section = Section("Start-up", head)
    for peer in _PACKAGES:
        row = [peer, figures.cell("import", peer, "wall_ms")]
        row += [figures.cell("import", peer, "cpu_ms")]
        section.rows.append([*row, figures.cell("first job", peer, "first_job_ms")])
    mine, theirs = (figures.values("import", peer, "wall_ms") for peer in (OURS, PY))
    more = [a - b for a, b in zip(mine, theirs, strict=True)]
    section.at_most("import less sepp-py's", more, 50, " ms")
    return [section]


def _import(peer: str) -> Result:
    return run([sys.executable, "-P", "-c", _IMPORT.format(package=_PACKAGES[peer])], 60)


def _first_job(peer: str, server_kind: str) -> Result:
    with running_server(server_kind) as server:
        trio.run(lambda: fill(server.address, "bench", 1, payload=200, rate=0))
        began = time.monotonic_ns()
        result = run([*workers()[peer], "--address", server.address, "--jobs", "1"], 60)
        result["first_job_ms"] = (result["first_job_ns"] - began) / 1e6
        return result


if __name__ == "__main__":
    program(__doc__, sections)
