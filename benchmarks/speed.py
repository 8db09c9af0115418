"""Everything that our speed is held to, measured in one run; exit status 1 if a target is missed.

    python -m benchmarks.speed --write

About a quarter of an hour. ``--write`` puts the tables into docs/speed.md.
"""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
import time

from . import enqueue, many_leases, slots, start_up, trickle, worker_cost
from ._figures import Scale, Section, written
from ._program import missed, parser, scale_of
from ._programs import ROOT, RunError

_PAGE = ROOT / "docs" / "speed.md"
_BEGIN = "<!-- measured: begin -->"
_END = "<!-- measured: end -->"
_PROGRAMS = {
    "worker_cost": worker_cost.sections,
    "trickle": trickle.sections,
    "slots": slots.sections,
    "enqueue": enqueue.sections,
    "start_up": start_up.sections,
    "many_leases": many_leases.sections,
}


def put_into_page(page: str, text: str) -> str:
    """The page with ``text`` between its markers."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError("the page has lost its markers")
    return f"{before}{begin}\n{text}{end}{after}"


def _heading(scale: Scale, began: float, load: float) -> str:
    cores = len(os.sched_getaffinity(0))
    minutes = (time.monotonic() - began) / 60
    server = {"real": "the real server"}.get(scale.server, f"the embedded server ({scale.server})")
    return (
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, Python {platform.python_version()},"
        f" {platform.system()}, {cores} cores, {server}, {scale.rounds} rounds,"
        f" {minutes:.0f} minutes. Load before: {load:.1f}. {_repeated(scale.failures)}\n"
    )


def _repeated(failures: list[str]) -> str:
    return "Repeated, because they failed: " + "; ".join(failures) + "." if failures else ""


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--write", action="store_true", help="put the tables into docs/speed.md")
    made.add_argument("--only", nargs="+", choices=list(_PROGRAMS), default=list(_PROGRAMS))
    args = made.parse_args()
    scale = scale_of(args)
    began, load = time.monotonic(), os.getloadavg()[0]
    sections: list[Section] = []
    failed: list[str] = []
    for name in args.only:
        print(f"--- {name}, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        try:
            sections += _PROGRAMS[name](scale)
        except (RunError, subprocess.TimeoutExpired) as error:  # the rest is worth having
            print(error, file=sys.stderr, flush=True)
            failed.append(name)
    text = f"\n{_heading(scale, began, load)}\n{written(sections, smoke=scale.smoke)}\n"
    print(text)
    if args.write:
        _PAGE.write_text(put_into_page(_PAGE.read_text(), text))
    if failed:
        raise SystemExit("failed: " + ", ".join(failed))
    if not scale.smoke and (names := missed(sections)):
        raise SystemExit("missed: " + "; ".join(names))


if __name__ == "__main__":
    main()
