"""The command as users run it: a process of its own, in a session of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

COMMAND = (sys.executable, "-m", "sepp_trio")


def sepp_trio(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        (*COMMAND, *arguments), capture_output=True, text=True, timeout=150, check=False,
        stdin=subprocess.DEVNULL, env={**os.environ, **env},
    )  # fmt: skip


@contextmanager
def started(*arguments: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """Start it; on the way out its whole session is killed if it is still there."""
    with subprocess.Popen(
        (*COMMAND, *arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True, env={**os.environ, **env},
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            for pid in session_of(process):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def session_of(process: subprocess.Popen[str]) -> list[int]:
    """All living processes of the session, children of children too."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(ValueError, OSError):
            # "pid (name) state parent group session ...", and the name may hold anything
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == process.pid and state != "Z":
                found.append(int(entry.name))
    return found


def ready_address(process: subprocess.Popen[str]) -> str:
    """The address in the ready line of `serve`."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("listening on "), line
    return line.removeprefix("listening on ").strip()


def is_empty(directory: Path) -> bool:
    return not list(directory.iterdir())
