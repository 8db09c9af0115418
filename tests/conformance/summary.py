"""What pytest tells of the conformance suite at its end."""

from __future__ import annotations

import re

import pytest

from tests.conformance.unobserved import UNOBSERVED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many scenarios ran on each server with each driver, and why any were skipped."""
    counts: dict[str, dict[str, int]] = {}
    reasons: dict[str, int] = {}
    stalled: list[str] = []
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            node = getattr(report, "nodeid", "")
            if not re.search(r"tests/conformance/test_(?!runner)\w+\.py::.*\[", node):
                continue
            combination = "-".join(node.partition("[")[2].rstrip("]").split("-")[:2])
            row = counts.setdefault(combination, {})
            row[outcome] = row.get(outcome, 0) + 1
            stalled += [
                f"{node.rpartition('::')[2]} {what}: {error}"
                for what, error in getattr(report, "user_properties", ())
            ]
            if outcome == "skipped":
                reason = str(report.longrepr[2])
                reasons[reason] = reasons.get(reason, 0) + 1
    if not counts:
        return
    terminalreporter.section("conformance")
    for combination, row in sorted(counts.items()):
        terminalreporter.write_line(
            f"{combination}: " + ", ".join(f"{n} {outcome}" for outcome, n in row.items())
        )
    for line in stalled:
        terminalreporter.write_line(line)
    for reason, number in reasons.items():
        terminalreporter.write_line(f"{number} x {reason}")
    terminalreporter.write_line(f"{len(UNOBSERVED)} rules cannot be shown: see unobserved.py")
