"""Servers as processes that come back under the same address, or live at another time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conformance.servers import EMBEDDED, EMBEDDED_FILE, HOW_TO_GET_IT, REAL, real_binary
from tests.conformance.servers import Server as AnyPortServer

_NOT_THERE = pytest.mark.skipif(real_binary() is None, reason=HOW_TO_GET_IT)
REAL_SERVER = pytest.param(REAL, marks=[pytest.mark.real_server, _NOT_THERE])
BOTH = [EMBEDDED, REAL_SERVER]
BOTH_DURABLE = [EMBEDDED_FILE, REAL_SERVER]

_ANY_PORT = "127.0.0.1:0"


def faketime_library() -> str | None:
    """The library that shifts a process's clock (Debian package ``faketime``)."""
    found = sorted(Path("/usr").glob("lib*/**/libfaketime.so.1"))
    return str(found[0]) if found else None


class Server(AnyPortServer):
    """Keeps its port when it is started again; its clock is ``ahead`` by so many seconds."""

    ahead = 0

    def _recipe(self) -> tuple[list[str], dict[str, str]]:
        command, env = super()._recipe()
        if self.address:
            command = [self.address if word == _ANY_PORT else word for word in command]
            if "SEPP_SERVER__LISTEN_ADDR" in env:
                env = {**env, "SEPP_SERVER__LISTEN_ADDR": self.address}
        if self.ahead:
            shifted = {"FAKETIME": f"{self.ahead:+d}s", "DONT_FAKE_MONOTONIC": "1"}
            env = {**env, **shifted, "LD_PRELOAD": faketime_library() or ""}
        return command, env

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.address.rpartition(":")[2])


@contextmanager
def running_server(kind: str, *, ahead: int = 0) -> Iterator[Server]:
    """A server around the block."""
    server = Server(kind, "")
    server.ahead = ahead
    try:
        server.start()
        yield server
    finally:
        server.close()


def kill_rounds(default: int) -> int:
    """How often the kill tests kill: ``SEPP_KILL_ROUNDS``, for long runs."""
    return int(os.environ.get("SEPP_KILL_ROUNDS", default))
