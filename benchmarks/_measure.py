"""What every benchmark measures of its own process, and how it says so. Stdlib only."""

from __future__ import annotations

import json
import resource
import statistics
import struct
import time
from collections.abc import Sequence
from pathlib import Path

_STAMP = struct.Struct("<Q")


def cpu_seconds() -> float:
    """User and system time of this process so far, all its threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def resident_mib(pid: int | str = "self", *, peak: bool = False) -> float:
    """Resident memory of a process, now or at its peak (Linux)."""
    # ru_maxrss survives exec: a small child would report its parent's peak.
    wanted = "VmHWM:" if peak else "VmRSS:"
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(wanted):
            return int(line.split()[1]) / 1024
    return 0.0


def stamped_payload(size: int) -> bytes:
    """``size`` bytes (at least 8) that begin with the monotonic clock in nanoseconds."""
    return _STAMP.pack(time.monotonic_ns()).ljust(size, b"x")


def waited_ms(payload: bytes) -> float:
    """Milliseconds since ``stamped_payload`` made ``payload`` on this machine."""
    return (time.monotonic_ns() - int(_STAMP.unpack_from(payload)[0])) / 1e6


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` of the values lie; 0 of none."""
    return sorted(values)[round(share * (len(values) - 1))] if values else 0.0


def report(**figures: object) -> None:
    """Print one JSON line: how a measured program hands over its figures."""
    print(json.dumps(figures), flush=True)


def spread(values: Sequence[float]) -> str:
    """``median (least–greatest)`` with three significant digits or so."""
    middle = statistics.median(values)
    digits = 0 if middle >= 100 else 1 if middle >= 10 else 2
    low, high = min(values), max(values)
    return f"{middle:,.{digits}f} ({low:,.{digits}f}–{high:,.{digits}f})"
