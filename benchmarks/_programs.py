"""The measured programs: each runs in a process of its own and prints one JSON line."""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
Result = dict[str, float]

# The checkout comes last on the path: the package that is measured is the one that is installed.
_START = (
    f"import runpy, sys; sys.path.append({str(ROOT)!r});"
    " runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def module(name: str, *arguments: object) -> list[str]:
    """The command that runs a program of this directory."""
    return [sys.executable, "-P", "-c", _START, f"benchmarks.{name}", *map(str, arguments)]


class RunError(Exception):
    """A measured program did not do what it should."""


def run(command: Sequence[str], limit: float) -> Result:
    """Run a program to its end and take the last line that it prints.

    Raises:
        RunError: it failed.
    """
    done = subprocess.run(
        command,
        cwd=tempfile.gettempdir(),
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=limit,
    )
    if done.returncode or not done.stdout:
        raise RunError(f"{command}: exit {done.returncode}\n{done.stderr[-3000:]}")
    result: Result = json.loads(done.stdout.splitlines()[-1])
    return result


@functools.cache
def _environment() -> dict[str, str]:
    """Ours, but that byte code is kept, as that of an installed package is."""
    cache = tempfile.mkdtemp(prefix="sepp-bench-pycache-")
    atexit.register(shutil.rmtree, cache, ignore_errors=True)
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": cache}


def workers() -> dict[str, list[str]]:
    """The worker programs that are here; the first is what ratios refer to.

    ``SEPP_BENCH_PEERS`` names the directory with ``bare_loop.py``, ``SEPP_RS_WORKER`` the Rust
    worker's binary (docs/speed.md).
    """
    found = {"sepp-py": module("worker_sepp_py"), "sepp-trio": module("worker_sepp_trio")}
    peers = os.environ.get("SEPP_BENCH_PEERS")
    if peers and (bare := Path(peers, "bare_loop.py").resolve()).exists():
        found["bare loop"] = [sys.executable, str(bare)]
    rust = os.environ.get("SEPP_RS_WORKER")
    if rust and Path(rust).exists():
        found["sepp-rs"] = [rust]
    return found
