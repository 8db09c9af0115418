"""How long the import takes, and from the start of a process to its first handled job."""

from __future__ import annotations

import itertools
import sys
import time

import trio

from ._figures import Figures, Scale, Section
from ._program import program
from ._programs import run, workers
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
    figures, commands = Figures(scale), workers()
    for turn, (peer, package) in itertools.product(range(2 * scale.rounds + 1), _PACKAGES.items()):
        result = run([sys.executable, "-P", "-c", _IMPORT.format(package=package)], 60)
        if turn:  # the first one compiles
            figures.add("import", peer, result)
    for turn, peer in itertools.product(range(scale.rounds + 1), _PACKAGES):
        with running_server(scale.server) as server:
            trio.run(lambda: fill(server.address, "bench", 1, payload=200, rate=0))
            began = time.monotonic_ns()
            result = run([*commands[peer], "--address", server.address, "--jobs", "1"], 60)
            result["first_job_ms"] = (result["first_job_ns"] - began) / 1e6
            if turn:
                figures.add("first job", peer, result)
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


if __name__ == "__main__":
    program(__doc__, sections)
