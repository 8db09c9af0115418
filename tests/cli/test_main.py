"""The command line itself: help that fits a screen, exit codes, one-line errors."""

from __future__ import annotations

import signal
import subprocess

import pytest
import trio

from sepp_trio import BrokerError
from sepp_trio._version import __version__
from sepp_trio.cli import main
from tests.cli.helpers import COMMAND, sepp_trio


@pytest.mark.parametrize("arguments", [["--help"], ["demo", "--help"], ["serve", "--help"]])
def test_help_fits_a_screen(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        main(arguments)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"sepp-trio {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [[], ["dance"], ["demo", "--rows"], ["demo", "--rows", "0"], ["demo", "--rows", "many"],
     ["serve", "extra"], ["serve", "--port", "1"]],
)  # fmt: skip
def test_a_bad_command_line_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert capsys.readouterr().err.startswith("usage: sepp-trio")


def test_the_module_is_the_command() -> None:
    result = sepp_trio("--version")
    assert (result.returncode, result.stdout) == (0, f"sepp-trio {__version__}\n")


def test_a_reader_who_leaves_early_ends_it_without_a_word() -> None:
    with subprocess.Popen(
        (*COMMAND, "demo", "--rows", "300"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 1


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (FileNotFoundError(2, "No such file", "jobs"), 1, "sepp-trio serve: jobs: No such file\n"),
        (OSError(24, "Too many open files"), 1, "sepp-trio serve: Too many open files\n"),
        (BrokerError("one\n two"), 1, "sepp-trio serve: one two\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_fails_is_one_line(
    error: BaseException,
    code: int,
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(trio, "run", fail)
    assert main(["serve"]) == code
    assert capsys.readouterr() == ("", words)


def test_nohup_is_respected() -> None:
    command = ("nohup", *COMMAND, "demo", "--no-crash", "--rows", "200")
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"200 rows, each there exactly once" in output
