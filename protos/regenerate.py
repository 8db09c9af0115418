"""Generate ``sepp_trio/wire/generated`` from the contract, or check that it is up to date.

``python protos/regenerate.py`` writes the messages and stubs and, from these and the records, the
codecs; with ``--check`` it writes nothing, says which files differ and exits 1 if any do. Needs
the ``proto`` dependency group.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
GENERATED = ROOT / "sepp_trio" / "wire" / "generated"
CODECS = GENERATED / "codecs.py"
# The default of the compiler makes synchronous grpcio stubs.
OPTIONS = "client_generation=async,server_generation=async"


def main() -> int:
    """Run the command; the exit status is 1 when ``--check`` finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare, exit 1 on a difference")
    arguments = parser.parse_args()
    differing = messages(write=not arguments.check) + codecs(write=not arguments.check)
    if not arguments.check:
        return 0
    for path in differing:
        sys.stderr.write(f"out of date: {path.relative_to(ROOT)}\n")
    return 1 if differing else 0


def messages(*, write: bool) -> list[Path]:
    """Generate messages and stubs; the files that differed."""
    with tempfile.TemporaryDirectory() as directory:
        fresh = Path(directory)
        generate(fresh)
        differing = differences(fresh, GENERATED)
        if differing and write:
            shutil.rmtree(GENERATED, ignore_errors=True)
            shutil.copytree(fresh, GENERATED)
    return [GENERATED / name for name in differing]


def codecs(*, write: bool) -> list[Path]:
    """Compile the codecs of the committed messages; their file if it differed."""
    # Imported here because it imports the messages.
    from sepp_trio.wire._codegen import codecs_source

    source = codecs_source()
    if CODECS.exists() and CODECS.read_text() == source:
        return []
    if write:
        CODECS.write_text(source)
    return [CODECS]


def generate(target: Path) -> None:
    """Compile every contract file into `target`."""
    scripts = Path(sys.executable).parent
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"--proto_path={PROTOS}",
            f"--python_betterproto2_out={target}",
            f"--python_betterproto2_opt={OPTIONS}",
            *(str(path) for path in sorted(PROTOS.rglob("*.proto"))),
        ],
        check=True,
        # The plugin formats what it writes by the settings of the directory it runs in.
        cwd=ROOT,
        # protoc looks for the plugin, and the plugin for its formatter, on the path.
        env={**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"},
    )


def differences(fresh: Path, committed: Path) -> list[str]:
    """The files, relative to either directory, that are not the same in both."""
    names = {
        str(path.relative_to(top))
        for top in (fresh, committed)
        for path in top.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path != CODECS
    }
    return sorted(
        name
        for name in names
        if not (fresh / name).is_file()
        or not (committed / name).is_file()
        or not filecmp.cmp(fresh / name, committed / name, shallow=False)
    )


if __name__ == "__main__":
    sys.exit(main())
