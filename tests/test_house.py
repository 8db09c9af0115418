"""The house keeps its rules: who imports whom, what the public face shows, what the papers say."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sepp_trio
from sepp_trio import errors

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "sepp_trio"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAPERS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
PUBLIC = {name: value for name in dir(sepp_trio) if not name.startswith("_")
          and not inspect.ismodule(value := getattr(sepp_trio, name))
          and name != "TYPE_CHECKING"}  # fmt: skip


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if "generated" not in path.parts:
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def run(*command: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=50, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_nothing_imports_upwards() -> None:
    script = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
    result = run(sys.executable, "-c", script)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_module_says_what_it_is_about() -> None:
    assert not [str(path) for path, tree in modules() if not ast.get_docstring(tree)]


def test_nothing_uses_asyncio_or_system_tasks() -> None:
    found = [
        f"{path}:{node.lineno}"
        for path, tree in modules()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Import) and any(a.name == "asyncio" for a in node.names))
        or (isinstance(node, ast.ImportFrom) and node.module == "asyncio")
        or (isinstance(node, ast.Attribute) and node.attr == "spawn_system_task")
    ]
    assert not found


def test_the_public_face_is_re_exports_and_nothing_else() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    *now, later = tree.body[2:]
    assert isinstance(later, ast.If)
    for node in [*now, *later.body]:
        assert isinstance(node, ast.ImportFrom), ast.unparse(node)
        assert node.level == 1
        assert all(alias.asname == alias.name for alias in node.names), ast.unparse(node)


def test_the_embedded_server_is_imported_when_it_is_used() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = {a.name for node in nodes if node.module == "broker" for a in node.names}
    assert names == sepp_trio._BROKER  # type: ignore[attr-defined]
    result = run(
        sys.executable,
        "-c",
        "import sys, sepp_trio\n"
        "assert not hasattr(sepp_trio, 'nothing')\n"
        "assert 'sepp_trio.broker' not in sys.modules\n"
        "assert callable(sepp_trio.open_broker)\n",
    )
    assert result.returncode == 0, result.stderr


def test_a_star_import_gives_the_public_names_and_no_modules() -> None:
    names: dict[str, Any] = {}
    exec("from sepp_trio import *", names)
    del names["__builtins__"]
    assert {"open_broker", "open_client", "Worker", "Duration"} <= names.keys()
    assert not [name for name, value in names.items() if inspect.ismodule(value)]
    assert all(getattr(sepp_trio, name) is value for name, value in names.items())


def test_every_public_name_is_documented() -> None:
    undocumented = [
        name for name, value in PUBLIC.items()
        if (inspect.isclass(value) or inspect.isroutine(value)) and not inspect.getdoc(value)
    ]  # fmt: skip
    assert not undocumented


def annotations_of(value: Any) -> Iterator[str]:
    if inspect.isclass(value):
        yield from map(str, vars(value).get("__annotations__", {}).values())
        for name, member in vars(value).items():
            if not name.startswith("_") or name == "__init__":
                yield from annotations_of(inspect.unwrap(getattr(member, "fget", None) or member))
    elif inspect.isfunction(value):
        yield from map(str, value.__annotations__.values())


def test_no_public_signature_says_any() -> None:
    found = [
        (name, annotation)
        for name, value in PUBLIC.items()
        for annotation in annotations_of(value)
        if re.search(r"\bAny\b", annotation)
    ]
    assert not found


def test_every_error_is_public_and_explained() -> None:
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    for name, value in vars(errors).items():
        if inspect.isclass(value) and issubclass(value, Exception):
            assert PUBLIC.get(name) is value, name
            assert f"`{name}`" in page, name


@pytest.mark.parametrize("tool", ["pytest", "sepp-trio demo"])
def test_the_readme_has_one_line_for_the_demo_and_one_for_the_tests(tool: str) -> None:
    lines = [line for line in README.splitlines() if line.startswith("python3 -m venv ")]
    assert len(lines) == 2
    assert sum(tool in line for line in lines) == 1  # .ci/run finds them by this


@pytest.mark.parametrize("paper", PAPERS, ids=lambda path: path.name)
def test_links_to_files_lead_somewhere(paper: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", paper.read_text(encoding="utf-8")):
        assert (paper.parent / target).exists(), target
