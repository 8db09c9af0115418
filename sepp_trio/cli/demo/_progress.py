"""What the demo shows while it runs: lines, and a bar where somebody is looking."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TextIO

_BAR_WIDTH = 30
_TITLE_WIDTH = 11
_PLAIN_STEPS = 4
"""Without a terminal the bar becomes this many plain lines in all."""


class Console:
    """Writes the demo's story to a stream.

    On a terminal the progress is one line that is drawn over and over; elsewhere it is a plain
    line per quarter, so that a log stays readable.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._bar_shown = False
        self._quarters = 0

    def line(self, title: str, text: str) -> None:
        """One line of the story, below the bar if there is one."""
        self._leave_bar()
        self._write(f"{title:<{_TITLE_WIDTH}}{text}\n")

    def progress(self, done: int, total: int) -> None:
        """`done` of `total` chunks are in; call whenever it changed."""
        if self._live:
            filled = _BAR_WIDTH * done // total
            bar = "#" * filled + "." * (_BAR_WIDTH - filled)
            self._write(f"\r{'import':<{_TITLE_WIDTH}}[{bar}] {_share(done, total)}")
            self._bar_shown = True
        elif (quarters := _PLAIN_STEPS * done // total) > self._quarters:
            self._quarters = quarters
            self.line("import", _share(done, total))

    def close(self) -> None:
        """Leave the cursor on a line of its own."""
        self._leave_bar()

    def _leave_bar(self) -> None:
        if self._bar_shown:
            self._bar_shown = False
            self._write("\n")

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _share(done: int, total: int) -> str:
    return f"{100 * done // total:3d} %  {done}/{total} chunks"
