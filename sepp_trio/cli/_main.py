"""The `sepp-trio` command: its options, its exit codes, its one-line errors."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from .._version import __version__
from ..errors import SeppError
from ._nursery import on_signals, plain_nursery
from ._serve import DEFAULT_LISTEN, ServeOptions, serve
from .demo import Console, DemoError, DemoOptions, Report, run_demo

if TYPE_CHECKING:
    from collections.abc import Sequence

_EXIT_CODES = """\
exit codes: 0 done, 1 failed (one line on standard error says why),
2 bad command line, 128 + N ended by signal N"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments` (the process's own by default); gives its exit code."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
    except (SeppError, DemoError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # nobody reads what we say, so say no more
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        print(f"sepp-trio {options.command}: {_one_line(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # between the start and the loop, where no one listens yet
        return 128 + signal.SIGINT
    return code


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sepp-trio",
        description="Client, worker and embedded server of the sepp job queue, for Trio.",
        epilog=_EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"sepp-trio {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_demo(commands)
    _add_serve(commands)
    return parser


def _add_demo(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = (
        "Import the airports of the world from a CSV file into SQLite, as jobs: the server and the"
        " worker run in processes of their own, and half way the worker is killed hard. At the end"
        " the database is compared with the source, row by row."
    )
    command = commands.add_parser(
        "demo", help="watch a real import survive a crash", description=text
    )
    command.set_defaults(run=_demo)
    command.add_argument(
        "--rows", type=_positive, metavar="N", help="import only the first N rows (all by default)"
    )
    command.add_argument(
        "--db", type=Path, metavar="FILE", help="import into this new file and keep it"
    )
    command.add_argument("--no-crash", action="store_true", help="let the worker live")
    command.add_argument(
        "--json", action="store_true", help="the result as JSON; the story on standard error"
    )


def _add_serve(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = (
        "Run the embedded server until SIGTERM or Ctrl-C, which end it gracefully; a second one"
        " ends it at once. When it is ready it prints one line: listening on ADDRESS."
    )
    command = commands.add_parser("serve", help="run the embedded server", description=text)
    command.set_defaults(run=_serve)
    command.add_argument(
        "--db", type=Path, metavar="FILE", help="keep the jobs in this file (in memory without)"
    )
    command.add_argument(
        "--listen",
        metavar="ADDRESS",
        help=f"HOST:PORT (port 0: any free one) or unix:/PATH; {DEFAULT_LISTEN} by default",
    )
    command.add_argument(
        "--config",
        type=Path,
        metavar="TOML",
        help="limits, queues, API keys and TLS, with the keys of the real server's file",
    )


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return number


def _serve(options: argparse.Namespace) -> int:
    return trio.run(serve, ServeOptions(options.db, options.listen, options.config))


def _demo(options: argparse.Namespace) -> int:
    console = Console(sys.stderr if options.json else sys.stdout)
    wanted = DemoOptions(rows=options.rows, database=options.db, crash=not options.no_crash)
    try:
        outcome = trio.run(_demo_until_signal, wanted, console)
    finally:
        console.close()
    if isinstance(outcome, signal.Signals):
        console.line("stopped", f"by {outcome.name}; nothing is left behind")
        return 128 + outcome
    if options.json:
        print(outcome.to_json())
    outcome.tell(console)
    return 0 if outcome.succeeded else 1


async def _demo_until_signal(options: DemoOptions, console: Console) -> Report | signal.Signals:
    stopped_by: signal.Signals | None = None
    report: Report | None = None

    def stop(number: signal.Signals) -> None:
        nonlocal stopped_by
        stopped_by = stopped_by or number
        nursery.cancel_scope.cancel(reason=number.name)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup means it
        numbers.append(signal.SIGHUP)
    async with plain_nursery() as nursery:
        await nursery.start(on_signals, stop, *numbers)
        try:
            report = await run_demo(options, console)
        except (DemoError, SeppError):
            if stopped_by is None:  # else it is what the stop looks like from inside
                raise
        nursery.cancel_scope.cancel()
    outcome = report or stopped_by
    assert outcome is not None  # the nursery ends by one of the two, or raises
    return outcome
