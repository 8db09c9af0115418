"""The worker's options, checked."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..types import Duration
from ..types._checks import integer, seconds, text
from ..types._job import checked_queues
from ..types._value import Value

OnFatal = Literal["retry", "raise"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Options(Value):
    """What a worker was made with; durations in seconds."""

    queues: tuple[str, ...]
    lease_duration: float
    wait_timeout: float
    max_jobs: int | None
    auto_extend: bool
    auto_extend_interval: float | None
    reserve_error_backoff: float
    worker_id: str
    handler_timeout: float | None
    shutdown_grace: float | None
    on_fatal: OnFatal


def checked_options(
    queues: Sequence[str],
    lease_duration: Duration,
    *,
    wait_timeout: Duration,
    max_jobs: int | None,
    auto_extend: bool,
    auto_extend_interval: Duration | None,
    reserve_error_backoff: Duration,
    worker_id: str | None,
    handler_timeout: Duration | None,
    shutdown_grace: Duration | None,
    on_fatal: OnFatal,
) -> Options:
    """Check every option.

    Raises:
        TypeError, ValueError: naming the option and its limit.
    """
    lease = seconds(lease_duration, "lease_duration")
    wait = seconds(wait_timeout, "wait_timeout")
    if wait < 0.001:
        raise ValueError(f"wait_timeout must be at least 0.001 s, not {wait}")
    if not isinstance(auto_extend, bool):
        raise TypeError(f"auto_extend must be a bool, not {type(auto_extend).__name__}")
    interval = None
    if auto_extend_interval is not None:
        interval = seconds(auto_extend_interval, "auto_extend_interval")
        if interval >= lease:
            raise ValueError(
                f"auto_extend_interval must be shorter than lease_duration ({lease:.12g} s),"
                f" not {interval:.12g}"
            )
    if on_fatal not in ("retry", "raise"):
        raise ValueError(f"on_fatal must be 'retry' or 'raise', not {on_fatal!r}")
    return Options(
        queues=checked_queues(queues),
        lease_duration=lease,
        wait_timeout=wait,
        max_jobs=None if max_jobs is None else integer(max_jobs, "max_jobs", 1),
        auto_extend=auto_extend or interval is not None,
        auto_extend_interval=interval,
        reserve_error_backoff=seconds(reserve_error_backoff, "reserve_error_backoff"),
        worker_id=default_worker_id() if worker_id is None else text(worker_id, "worker_id"),
        handler_timeout=(
            None if handler_timeout is None else seconds(handler_timeout, "handler_timeout")
        ),
        shutdown_grace=(
            None if shutdown_grace is None else seconds(shutdown_grace, "shutdown_grace", zero=True)
        ),
        on_fatal=on_fatal,
    )


def default_worker_id() -> str:
    """``host-pid-xxxxxxxx``: tells workers apart in the server's traces."""
    host = socket.gethostname() or "unknown"
    return f"{host}-{os.getpid()}-{secrets.token_hex(4)}"
