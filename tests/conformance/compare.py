"""The same random operations for the embedded server, on a file, and the real one.

    python -m tests.conformance.compare --operations 10000 --seed 7

A run is made of chapters, each with new servers and one of the configurations in turn. It ends
with 1 at the first difference; `--seed` and `--chapter` begin there again.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from sepp_trio.broker import BrokerConfig
from tests.conformance.servers import EMBEDDED_FILE, HOW_TO_GET_IT, REAL, Server, real_binary
from tests.conformance.sides import Side
from tests.conformance.walk import Difference, Stalled, Walk

if TYPE_CHECKING:
    from collections.abc import Sequence

# Shorter than the leases that are not meant to end.
CHAPTER = 1000
# Caps and short windows; strict, small and with retries; nothing but the server's own defaults.
CONFIGS = (
    """[limits]
max_queue_depth = 12
max_attempts_ceiling = 4
default_max_attempts = 2
default_priority = 3
max_reserve_batch = 5
max_payload_bytes = 8
[storage]
persist_mode = "buffer"
dedup_window_ms = 1500
dead_letter_retention_ms = 4000
sweep_limit = 7
[[queues]]
name = "a"
max_queue_depth = 4
default_max_attempts = 3
[[queues]]
name = "b"
default_priority = 9
allowed_job_types = ["t", "u"]
dedup_window_ms = 3000
""",
    """[server]
strict_queues = true
[limits]
allowed_encodings = ["raw"]
max_custom_entries = 2
max_schedule_horizon_ms = 2000
[storage]
persist_mode = "buffer"
dead_letter_retention_ms = 3600000
[[queues]]
name = "a"
retry_delay_ms = 400
retry_backoff = "exponential"
retry_delay_max_ms = 1000
[[queues]]
name = "b"
retry_delay_ms = 200
allowed_encodings = ["json"]
[[queues]]
name = "c"
max_custom_total_bytes = 12
max_schedule_horizon_ms = 100000000
""",
    """[storage]
persist_mode = "buffer"
""",
)


class Comparison:
    """A run: its seed, and what it has done so far."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.operations = 0
        self.chapters = 0
        self.stalls = 0
        self.counts: dict[str, int] = {}

    def chapter(self, number: int, operations: int) -> None:
        """Walk so far, or until the machine stalls.

        Raises:
            Difference: says how to come here again.
        """
        config = CONFIGS[number % len(CONFIGS)]
        dice = random.Random(f"{self.seed}/{number}")
        with (
            closing(Side(Server(EMBEDDED_FILE, config).start())) as embedded,
            closing(Side(Server(REAL, config).start())) as real,
        ):
            walk = Walk(dice, _parsed(config), (embedded, real))
            try:
                self._walk(walk, operations)
            except Difference as difference:
                again = f"--seed {self.seed} --chapter {number}"
                raise Difference(f"{difference}\nto see it again: {again}") from None
        self.chapters += 1
        for outcome, times in walk.counts.items():
            self.counts[outcome] = self.counts.get(outcome, 0) + times

    def _walk(self, walk: Walk, operations: int) -> None:
        for _ in range(operations):
            try:
                walk.step()
            except Stalled:
                self.stalls += 1
                return
            self.operations += 1

    def run(self, operations: int, first_chapter: int = 0) -> None:
        """As many operations as that, all compared.

        Raises:
            Difference: says how to come here again.
        """
        number = first_chapter
        while (left := operations - self.operations) > 0:
            self.chapter(number, min(left, CHAPTER))
            number += 1


def _parsed(config: str) -> BrokerConfig:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "sepp.toml")
        path.write_text(config)
        return BrokerConfig.from_toml(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run by the command line; gives the exit code."""
    parser = argparse.ArgumentParser(prog="compare", description=__doc__)
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--chapter", type=int, default=0, help="where to begin")
    options = parser.parse_args(arguments)
    if real_binary() is None:
        print(HOW_TO_GET_IT, file=sys.stderr)
        return 1
    comparison, begun = Comparison(options.seed), time.monotonic()
    try:
        comparison.run(options.operations, options.chapter)
    except Difference as difference:
        print(difference)
        return 1
    finally:
        for outcome, times in sorted(comparison.counts.items()):
            print(f"{times:7}  {outcome}")
        print(
            f"seed {options.seed}: {comparison.operations} operations compared in"
            f" {comparison.chapters} chapters, {comparison.stalls} of them cut short by a stalled"
            f" machine; {time.monotonic() - begun:.0f} s"
        )
    print("no difference")
    return 0


if __name__ == "__main__":
    sys.exit(main())
