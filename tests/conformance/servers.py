"""Starting the server under test: the real one or the embedded one, with the same TOML file.

The embedded one keeps jobs in memory, or in a file if it is to be `durable` or is of the kind
EMBEDDED_FILE. The real one always has a file.

Both are processes on a loopback port of their own choice, with an empty directory that is
removed at the end. A scenario that owns its server may terminate, kill and start it again.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path

import trustme

EMBEDDED = "embedded"
EMBEDDED_FILE = "embedded_file"
REAL = "real"
HOW_TO_GET_IT = (
    "no real sepp server: name its binary in SEPP_BIN or put it on PATH"
    " (`cargo install sepp --locked` builds it)"
)
_BUFFERED = {"SEPP_STORAGE__PERSIST_MODE": "buffer"}
_LISTENING = {
    # The real server logs "queue server listening ... addr=127.0.0.1:PORT".
    REAL: re.compile(r"queue server listening.*addr=(127\.0\.0\.1:\d+)"),
    EMBEDDED: re.compile(r"listening on (127\.0\.0\.1:\d+)"),
    EMBEDDED_FILE: re.compile(r"listening on (127\.0\.0\.1:\d+)"),
}


class ServerError(RuntimeError):
    """The server did not come up or did not end."""


def real_binary() -> str | None:
    """The path of the real server, from SEPP_BIN or PATH."""
    return os.environ.get("SEPP_BIN") or shutil.which("sepp")


@functools.cache
def certificates() -> dict[str, bytes]:
    """The files that configs.TLS names, and the CA that signed them; made once for a run."""
    authority = trustme.CA()
    server = authority.issue_cert("127.0.0.1")
    return {
        "server.crt": b"".join(pem.bytes() for pem in server.cert_chain_pems),
        "server.key": server.private_key_pem.bytes(),
        "ca.crt": authority.cert_pem.bytes(),
    }


class Server:
    """One server process of `kind` with `config` (TOML) and a directory of its own."""

    def __init__(self, kind: str, config: str, *, durable: bool = False) -> None:
        self.kind = kind
        self._directory = Path(tempfile.mkdtemp(prefix=f"sepp-{kind}-"))
        self.configure(config)
        self._durable = durable or kind == EMBEDDED_FILE
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self.log: deque[str] = deque(maxlen=200)
        self.address = ""

    def configure(self, config: str) -> None:
        """Set the configuration of the next start."""
        self._config = config
        (self._directory / "sepp.toml").write_text(config)
        if "tls_cert_path" in config:
            for name, pem in certificates().items():
                (self._directory / name).write_bytes(pem)

    def start(self, timeout: float = 60.0) -> Server:
        """Start the process and wait until it listens."""
        found = threading.Event()
        command, env = self._recipe()
        self._process = subprocess.Popen(
            command,
            env=env,
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        # A thread drains the pipe: a full one would stop the server.
        self._reader = threading.Thread(target=self._read, args=(self._process, found), daemon=True)
        self._reader.start()
        deadline = time.monotonic() + timeout
        while not found.wait(0.02):
            code = self._process.poll()
            if code is not None or time.monotonic() > deadline:
                self.kill()
                raise ServerError(
                    f"the {self.kind} server did not come up ({code}):\n{self.tail()}"
                )
        return self

    def tail(self) -> str:
        """The last lines that the server wrote."""
        return "\n".join(self.log)

    def _recipe(self) -> tuple[list[str], dict[str, str]]:
        config = str(self._directory / "sepp.toml")
        database = str(self._directory / "db")
        if self.kind == REAL:
            binary = real_binary()
            assert binary is not None, HOW_TO_GET_IT
            return [binary], {
                **os.environ,
                "SEPP_CONFIG": config,
                "SEPP_SERVER__LISTEN_ADDR": "127.0.0.1:0",
                "SEPP_SERVER__DB_PATH": database,
                "SEPP_ADMIN__LISTEN_ADDR": "127.0.0.1:0",
                # Fast, unless durability is what the configuration is about.
                **({} if "persist_mode" in self._config else _BUFFERED),
                "RUST_LOG": "sepp=info",
                "NO_COLOR": "1",
            }
        command = [sys.executable, "-m", "sepp_trio", "serve"]
        command += ["--config", config, "--listen", "127.0.0.1:0"]
        if self._durable:
            command += ["--db", database]
        return command, {**os.environ, "PYTHONUNBUFFERED": "1"}

    def _read(self, process: subprocess.Popen[str], found: threading.Event) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.log.append(line.rstrip())
            match = _LISTENING[self.kind].search(line)
            if match:
                self.address = match[1]
                found.set()

    def terminate(self) -> None:
        """Send SIGTERM; does not wait."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def wait(self, timeout: float = 30.0) -> int:
        """Wait for the end; the exit code."""
        assert self._process is not None
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise ServerError(f"the {self.kind} server did not end:\n" + self.tail()) from None
        self._reap()
        return code

    def kill(self) -> None:
        """End the process at once and reap it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._reap()

    def _reap(self) -> None:
        assert self._process is not None
        assert self._reader is not None
        self._reader.join(5)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    def close(self) -> None:
        """End the process if it runs and remove its directory."""
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)
