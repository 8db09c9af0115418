"""Notices when this machine stood still: what then fails against the clock says nothing.

Every scenario has seconds to spare for it, but a shared machine may take more than that.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

STEP = 0.05
# So much later than asked for is more than the usual wait for a turn.
STALL = 0.5


class StallWatch:
    """Counts the stalls while it runs: a thread on each core looks whether it wakes in time."""

    def __init__(self) -> None:
        self.stalls = 0
        self._over = threading.Event()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Watch during the block."""
        cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {0}
        threads = [threading.Thread(target=self._watch, args=(core,)) for core in sorted(cores)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def _watch(self, core: int) -> None:
        if hasattr(os, "sched_setaffinity"):
            with contextlib.suppress(OSError):  # taken from us meanwhile: then on any
                os.sched_setaffinity(threading.get_native_id(), {core})
        while True:
            began = time.monotonic()
            if self._over.wait(STEP):
                return
            if time.monotonic() - began > STEP + STALL:
                self.stalls += 1
