"""Nobody loads pytest or Hypothesis by loading something else."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("sepp_trio", ("pytest", "hypothesis", "sepp_trio.testing")),
        ("sepp_trio.testing", ("pytest", "_pytest", "hypothesis", "trio.testing")),
        ("sepp_trio.testing.strategies", ("sepp_trio.testing.stateful",)),
        ("_sepp_trio_pytestplugin", ("sepp_trio", "trio", "hypothesis")),
    ],
)
def test_a_module_loads_what_it_needs(module: str, absent: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*sorted(set(sys.modules) & set({absent!r})))"
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    assert result.stdout.split() == []
