"""The command line of the programs that measure against targets."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from ._figures import Scale, Section, written
from ._server import real_binary


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that all of them take."""
    made = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--smoke", action="store_true", help="only show that it works: one round")
    made.add_argument("--raw", type=Path, help="write every run as a JSON line here")
    made.add_argument(
        "--server", choices=["real", "embedded", "memory"], help="default: real if found"
    )
    return made


def scale_of(args: argparse.Namespace) -> Scale:
    """What the options ask for."""
    server = args.server or ("real" if real_binary() else "embedded")
    return Scale(1 if args.smoke else args.rounds, args.smoke, server, args.raw)


def program(description: str | None, sections: Callable[[Scale], list[Section]]) -> None:
    """Measure, and print the tables and the verdict."""
    scale = scale_of(parser(description).parse_args())
    print(written(sections(scale), smoke=scale.smoke))


def missed(sections: list[Section]) -> list[str]:
    """The targets that were measured and missed."""
    return [target.what for s in sections for target in s.targets if target.met is False]
