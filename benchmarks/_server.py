"""A server process for a benchmark: the real sepp where it is found, else the embedded one."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_ADDRESS = re.compile(r"(127\.0\.0\.1:\d+)")


@dataclass(frozen=True)
class Server:
    """A server process on loopback with an empty database."""

    kind: str
    address: str
    pid: int

    def cpu_seconds(self) -> float:
        """User and system time of the process so far (Linux)."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def real_binary() -> str | None:
    """The real server's binary, from ``SEPP_BIN`` or ``PATH``; ``None`` without it."""
    return os.environ.get("SEPP_BIN") or shutil.which("sepp")


@contextlib.contextmanager
def running_server(
    kind: str, *, persist: str = "buffer", start_limit: float = 30
) -> Iterator[Server]:
    """Start a server (``real``, ``embedded`` with a file, ``memory``) and stop it on leaving.

    ``persist`` is the storage mode of the sepp contract: ``sync_all`` or ``buffer``.
    """
    with tempfile.TemporaryDirectory(prefix="sepp-bench-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        config = directory / "sepp.toml"
        config.write_text(f'[storage]\npersist_mode = "{persist}"\n')
        env = {**os.environ, "NO_COLOR": "1"}
        if kind == "real":
            binary = real_binary()
            if binary is None:
                raise SystemExit("no real server: name it in SEPP_BIN or put sepp on PATH")
            command = [binary]
            env |= {
                "SEPP_CONFIG": str(config),
                "SEPP_SERVER__LISTEN_ADDR": "127.0.0.1:0",
                "SEPP_SERVER__DB_PATH": str(directory / "db"),
                "SEPP_ADMIN__ENABLED": "false",
                "RUST_LOG": "sepp=info",
            }
        else:
            database = ["--db", str(directory / "jobs.db")] if kind == "embedded" else []
            command = [sys.executable, "-m", "sepp_trio", "serve", "--listen", "127.0.0.1:0"]
            command += ["--config", str(config), *database]
        log = directory / "log"
        with log.open("wb") as sink:
            process = subprocess.Popen(
                command, env=env, cwd=directory, stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE, stderr=sink,
            )  # fmt: skip
        try:
            yield Server(kind, _wait_for_address(process, log, start_limit), process.pid)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
            assert process.stdout is not None
            process.stdout.close()


def _wait_for_address(process: subprocess.Popen[bytes], log: Path, limit: float) -> str:
    assert process.stdout is not None
    deadline, seen = time.monotonic() + limit, b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0 and selector.select(left):
            chunk = os.read(process.stdout.fileno(), 65536)
            if not chunk:
                break
            seen += chunk
            for line in _ANSI.sub("", seen.decode(errors="replace")).splitlines():
                match = _ADDRESS.search(line)
                if match and "listening" in line:
                    return match[1]
    process.kill()
    process.wait(10)
    raise SystemExit(f"the server did not come up:\n{seen.decode()}\n{log.read_text()[-2000:]}")
