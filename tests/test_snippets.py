"""The pages' code runs as it stands there.

A snippet of the README is a program. One of docs/testing.md is a file whose name its first line
says; pytest is run over them all.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def snippets_of(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


README = snippets_of("README.md")
TESTING = {text.splitlines()[0].removeprefix("# "): text for text in snippets_of("docs/testing.md")}


def run_python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (sys.executable, "-W", "error", *arguments), cwd=cwd, capture_output=True, text=True,
        timeout=170, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_the_producer_and_worker_take_twenty_lines() -> None:
    assert len([line for line in README[0].splitlines() if line.strip()]) <= 20


@pytest.mark.parametrize("snippet", README, ids=["worker", "own loop", "real server"])
def test_the_readme_s_programs(snippet: str, tmp_path: Path, served_address: str) -> None:
    program = tmp_path / "snippet.py"
    # A port of our own, where the page has the well-known one.
    program.write_text(snippet.replace("localhost:50051", served_address), encoding="utf-8")
    result = run_python(str(program), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert not result.stderr
    assert result.stdout


@pytest.mark.timeout(180)
@pytest.mark.slow
def test_the_guide_s_files(tmp_path: Path) -> None:
    for name, text in TESTING.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\ntrio_mode = true\nfilterwarnings = error\n")
    result = run_python("-m", "pytest", "-v", "-p", "no:cacheprovider", cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    for name in TESTING:
        assert not name.startswith("test_") or f"{name}::" in result.stdout, name
