"""Every check of the project; `nox -l` lists them, `.ci/run` runs them all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2025.2"
nox.options.sessions = ["lint", "tests"]
nox.options.error_on_missing_interpreters = False

PYTHONS = ["3.11", "3.12", "3.13"]
FLOOR = PYTHONS[0]
# What works against the clock comes first, alone with what also waits (conftest.py).
TWO_PROCESSES = ("-n", "2")
H2SPEC = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"


def run(session: nox.Session, minutes: float, *command: str, **env: str) -> None:
    """Run a command of the session's environment, for so many minutes at most."""
    limit = ("timeout", "--kill-after=10", f"{minutes * 60:.0f}")
    prefix = limit if shutil.which("timeout") else ()
    session.run(*prefix, *command, env=env, external=bool(prefix))


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """The whole suite; arguments after `--` go to pytest."""
    session.install("-e", ".[demo]", "--group", "test")
    run(session, 25, "python", "-m", "pytest", *TWO_PROCESSES, *session.posargs)


@nox.session(python=FLOOR)
def lint(session: nox.Session) -> None:
    """Style, types, and who may import whom."""
    session.install("-e", ".[demo]", "--group", "test", "--group", "lint", "nox")
    run(session, 2, "ruff", "check")
    run(session, 2, "ruff", "format", "--check")
    run(session, 5, "mypy")
    run(session, 5, "mypy", "examples", "noxfile.py")
    rooms = ("tests/cli", "tests/conformance", "tests/faults")
    run(session, 5, "mypy", "--explicit-package-bases", *rooms)
    run(session, 2, "lint-imports")


@nox.session(python=PYTHONS)
def coverage(session: nox.Session) -> None:
    """The whole suite, counting branches in all processes; fails below the limit.

    Not counted is the conformance suite: it runs hundreds of scenarios at once against the clock,
    which counting slows down too much, and what it shows the rooms' own tests must have shown
    before. It is run by itself, so that this session is all of `tests` on its Python.
    """
    session.install("-e", ".[demo]", "--group", "test")
    run(session, 1, "coverage", "erase")
    suite = ("-m", "pytest", "--ignore=tests/conformance", "--durations=20", *TWO_PROCESSES)
    run(session, 35, "coverage", "run", *suite)
    run(session, 2, "coverage", "combine", "--quiet")
    run(session, 2, "coverage", "report")
    run(session, 10, "python", "-m", "pytest", "tests/conformance")


@nox.session(python=FLOOR)
def proto(session: nox.Session) -> None:
    """The generated code is what the contract generates; `-- --write` regenerates it."""
    session.install("-e", ".", "--group", "proto")
    arguments = [] if "--write" in session.posargs else ["--check"]
    run(session, 3, "python", "protos/regenerate.py", *arguments)


@nox.session(python=FLOOR)
def conformance(session: nox.Session) -> None:
    """The expectations that the embedded server meets in every run of the suite, of the real one.

    And the tests of other rooms that need it. It is `SEPP_BIN`, or `sepp` on PATH, or what
    `.ci/run` built.
    """
    session.install("-e", ".[demo]", "--group", "test")
    env = real_server(session)
    if not env:
        session.skip("no real server")
    real = ("-m", "real_server", *TWO_PROCESSES)
    run(session, 15, "python", "-m", "pytest", *real, *session.posargs, **env)


@nox.session(python=FLOOR)
def compare(session: nox.Session) -> None:
    """Random operations for the embedded server and the real one: every answer the same.

    `-- --operations 10000 --seed 7`; a difference says how to see it again.
    """
    session.install("-e", ".[demo]", "--group", "test")
    env = real_server(session)
    run(session, 30, "python", "-m", "tests.conformance.compare", *session.posargs, **env)


@nox.session(python=FLOOR)
def crash(session: nox.Session) -> None:
    """SIGKILL at random moments under load, `-- --rounds 50`: what was acknowledged holds."""
    session.install("-e", ".", "--group", "test")
    run(session, 30, "python", "-m", "tests.broker.crash", *session.posargs)


@nox.session(python=FLOOR)
def hostile(session: nox.Session) -> None:
    """Thousands of hostile and broken clients of `sepp-trio serve`; needs 20,000 open files."""
    session.install("-e", ".", "--group", "test")
    path = "tests/broker/test_hostile.py"
    run(session, 30, "python", "-m", "pytest", path, *session.posargs, SEPP_HOSTILE_SCALE="100")


@nox.session(python=FLOOR)
def h2spec(session: nox.Session) -> None:
    """The server role in HTTP/2 by the book; the cases that it does not pass are explained.

    The tool is `h2spec` on PATH, or is built with Go, outside of the checkout.
    """
    session.install("-e", ".", "--group", "test")
    run(session, 5, "python", "-m", "tests.transport.h2spec", h2spec_tool(session))


@nox.session(python=FLOOR)
def bench(session: nox.Session) -> None:
    """The benchmarks still run, and lose nothing; far too short for figures to quote.

    `-- --full` measures all that docs/speed.md holds, against its targets, and writes it there: a
    quarter of an hour, on a machine with nothing else to do.
    """
    # Not editable: what is measured is the package as users have it.
    session.install(".", "--group", "test")
    env = real_server(session)
    if "--full" in session.posargs:
        more = [argument for argument in session.posargs if argument != "--full"]
        env |= bench_peers(session)
        run(session, 40, "python", "-m", "benchmarks.speed", "--write", *more, **env)
        return
    for server in ("embedded", "real") if env else ("embedded",):
        road = ("benchmarks.no_job_lost", "--server", server, "--jobs", "2000")
        run(session, 3, "python", "-m", *road, **env)
    run(session, 3, "python", "-m", "benchmarks.speed", "--smoke", **env)


@nox.session(python=FLOOR)
def simulate(session: nox.Session) -> None:
    """Workers, bad networks and a restarting server on virtual time; a failing seed replays.

    `-- --jobs 100000 --seed 0`, and `--each` jobs of one seed.
    """
    session.install("-e", ".[demo]", "--group", "test")
    run(session, 90, "python", "-m", "tests.simulation", *session.posargs)


def cache() -> Path:
    """Where what is built once is kept, outside of the checkout."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sepp-trio"


def h2spec_tool(session: nox.Session) -> str:
    """The path of h2spec; builds it if need be and if it can be built."""
    found = shutil.which("h2spec")
    if found:
        return found
    built = cache() / "h2spec" / "h2spec"
    if not built.exists():
        if not shutil.which("go"):
            session.skip(f"no h2spec on PATH, and no Go for: go install {H2SPEC}")
        session.run("go", "install", H2SPEC, env={"GOBIN": str(built.parent)}, external=True)
    return str(built)


def bench_peers(session: nox.Session) -> dict[str, str]:
    """Where the bare loop and the Rust worker are, which are not of this checkout.

    `SEPP_BENCH_PEERS` names their directory; cargo builds the latter, outside of the checkout.
    """
    sources = os.environ.get("SEPP_BENCH_PEERS")
    if not sources:
        session.warn("no SEPP_BENCH_PEERS: without the bare loop and the Rust worker")
        return {}
    found = {"SEPP_BENCH_PEERS": sources}
    if shutil.which("cargo"):
        crate, target = cache() / "peers" / "sepp_rs_worker", cache() / "peers" / "target"
        shutil.copytree(Path(sources, "sepp_rs_worker"), crate, dirs_exist_ok=True)
        build = ("cargo", "build", "--release", "--quiet", "--target-dir", str(target))
        with session.chdir(crate):
            run(session, 20, *build)
        found["SEPP_RS_WORKER"] = str(target / "release" / "sepp_rs_worker")
    return found


def real_server(session: nox.Session) -> dict[str, str]:
    """The environment in which the real server is found; empty, with a warning, without one."""
    built = cache() / "real" / "bin" / "sepp"
    found = os.environ.get("SEPP_BIN") or shutil.which("sepp")
    if not found and built.exists():
        found = str(built)
    if not found:
        session.warn("no real server")
    return {"SEPP_BIN": found} if found else {}
