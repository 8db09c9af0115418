"""What came out of the rounds, the targets it is held against, and how both are written."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import TimeoutExpired

from ._measure import spread
from ._programs import Result, RunError


@dataclass(frozen=True)
class Scale:
    """How thoroughly to measure."""

    rounds: int = 5
    smoke: bool = False
    """Only show that it works: few jobs, few sizes."""
    server: str = "real"
    raw: Path | None = None
    """Where each run is kept as a JSON line."""
    failures: list[str] = field(default_factory=list)
    """Runs that failed and were repeated."""


@dataclass(frozen=True)
class Target:
    """One line of the verdict; ``met`` is ``None`` if it could not be measured."""

    what: str
    limit: str
    measured: str
    met: bool | None


@dataclass
class Section:
    """One question, its table and its targets."""

    title: str
    head: Sequence[str]
    rows: list[list[str]] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)

    def at_most(
        self,
        what: str,
        values: Sequence[float],
        limit: float,
        unit: str = "",
        *,
        each: bool = False,
    ) -> None:
        """A target for the median of the rounds, or for each of them."""
        if not values:
            self.targets.append(Target(what, f"≤ {limit:g}{unit}", "not measured", None))
            return
        worst = max(values) if each else statistics.median(values)
        self.targets.append(
            Target(what, f"≤ {limit:g}{unit}", spread(values) + unit, worst <= limit)
        )

    def at_least(self, what: str, values: Sequence[float], limit: float) -> None:
        """A target for the median of the rounds."""
        met = statistics.median(values) >= limit
        self.targets.append(Target(what, f"≥ {limit:g}", spread(values), met))


class Figures:
    """The results of programs that took turns: for each case and program, one of each round."""

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        self._results: dict[tuple[Hashable, str], list[Result]] = {}

    def take(self, case: Hashable, peer: str, measure: Callable[[], Result]) -> None:
        """Do one run and take it in, and say so on stderr; one that fails is repeated once."""
        try:
            result = measure()
        except (RunError, TimeoutExpired) as error:
            print(error, file=sys.stderr, flush=True)
            self._scale.failures.append(f"{peer}, {case}")
            result = measure()
        self._results.setdefault((case, peer), []).append(result)
        if self._scale.raw:
            with self._scale.raw.open("a") as file:
                file.write(json.dumps({"case": str(case), "peer": peer, **result}) + "\n")
        shown = ", ".join(f"{name} {value:.5g}" for name, value in _numbers(result)[:3])
        print(f"{case} {peer}: {shown}", file=sys.stderr, flush=True)

    def values(self, case: Hashable, peer: str, name: str) -> list[float]:
        """One figure of all rounds; none if the program did not run or does not know it."""
        return [run[name] for run in self._results.get((case, peer), []) if name in run]

    def ratios(self, case: Hashable, name: str, peer: str, to: str) -> list[float]:
        """One figure of a program as a multiple of another's, round by round."""
        mine, theirs = self.values(case, peer, name), self.values(case, to, name)
        return [a / b for a, b in zip(mine, theirs, strict=False)]

    def cell(self, case: Hashable, peer: str, name: str) -> str:
        """``median (least–greatest)`` of one figure; a dash without any."""
        values = self.values(case, peer, name)
        return spread(values) if values else "–"


def _numbers(result: Result) -> list[tuple[str, float]]:
    named = ("cpu_us_per_job", "latency_p50_ms", "latency_p99_ms", "busy_share", "lost_leases")
    first = [(name, result[name]) for name in named if result.get(name)]
    return first or list(result.items())


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def verdict(sections: Sequence[Section]) -> str:
    """All targets in one table."""
    word = {True: "yes", False: "**no**", None: "–"}
    rows = [[t.what, t.limit, t.measured, word[t.met]] for s in sections for t in s.targets]
    return table(["target", "limit", "measured", "met"], rows)


def written(sections: Sequence[Section], *, smoke: bool) -> str:
    """The verdict, unless the figures are too few for one, then each section's table."""
    parts = [] if smoke else [verdict(sections)]
    for section in sections:
        measured = [row for row in section.rows if any("(" in cell for cell in row)]
        parts.append(f"**{section.title}**\n\n{table(section.head, measured)}")
    return "\n".join(parts)
