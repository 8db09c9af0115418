"""Where in the user's own code a task stands."""

from __future__ import annotations

import functools
import inspect
import os
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, NamedTuple

import trio

import sepp_trio

from .._threads import RUN_SYNC
from ._report import Line

_LIBRARIES: Final = tuple(
    {
        *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")),
        *(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")),
        str(Path(trio.__file__).parent) + os.sep,
        str(Path(sepp_trio.__file__).parent) + os.sep,
    }
)


class Place(NamedTuple):
    """A line of the user's own, what it awaits, and the task if it is not the handler's own."""

    line: Line
    awaits: str | None
    task: str | None


class OwnCode:
    """What is the user's own code, and not that of a library: what is installed nowhere, and
    what lies beside the handler."""

    def __init__(self, handler: Any) -> None:
        code = _code_of(handler)
        self.handler = Line(code.co_filename, code.co_firstlineno, code.co_qualname)
        self._beside = os.path.dirname(code.co_filename) + os.sep
        self._known: dict[str, bool] = {}

    def owns(self, code: CodeType) -> bool:
        """Whether this is own code."""
        file = code.co_filename
        known = self._known.get(file)
        if known is None:
            foreign = file.startswith(("<", *_LIBRARIES))
            known = self._known[file] = (
                not foreign or os.path.dirname(file) + os.sep == self._beside
            )
        return known

    def place(self, task: trio.lowlevel.Task, root: trio.lowlevel.Task) -> Place | None:
        """Where the task is suspended; of one that runs no own code, where the one above it is.
        ``None`` if there is no own code on the way to ``root``, the handler's own task."""
        place: Place | None = None
        current = task
        while True:
            frames = [(frame.f_code, number) for frame, number in current.iter_await_frames()]
            found = self._innermost(frames)
            if found is not None and place is None:
                after = [frame for frame, _ in current.iter_await_frames()][found[1] + 1 :]
                awaits = _name(after[0]) if after and current is task else None
                place = Place(found[0], awaits, None if task is root else task.name)
            elif found is not None and place is not None:
                place = place._replace(line=replace(place.line, called_from=self._near(found[0])))
            nursery = current.parent_nursery
            if (
                current is root
                or nursery is None
                or (place is not None and self._near(place.line) is not None)
            ):
                return place
            current = nursery.parent_task

    def in_thread(self, frame: FrameType | None) -> Line | None:
        """The innermost own line of a thread's stack."""
        if frame is None:
            return None
        frames = [(inner.f_code, number) for inner, number in traceback.walk_stack(frame)]
        found = self._innermost(frames[::-1])
        return None if found is None else found[0]

    def innermost(self, error: BaseException) -> Line | None:
        """The innermost own line that an exception came from."""
        found = self._innermost(list(_steps(error.__traceback__)))
        return None if found is None else found[0]

    def _innermost(self, frames: Sequence[tuple[CodeType, int | None]]) -> tuple[Line, int] | None:
        """Of frames, the outermost first, the last own one, and its place among them."""
        own = [place for place, (code, _) in enumerate(frames) if self.owns(code)]
        if not own:
            return None
        line = _line(*frames[own[-1]])
        if line.file != self.handler.file:
            near = [place for place in own if frames[place][0].co_filename == self.handler.file]
            if near:
                line = replace(line, called_from=_line(*frames[near[-1]]))
        return line, own[-1]

    def _near(self, line: Line) -> Line | None:
        """The line in the handler's file."""
        return line if line.file == self.handler.file else line.called_from

    def caught(self, error: BaseException) -> Line | None:
        """The own line at which an exception that is over was caught; ``None`` if it was
        caught in a library."""
        for code, number in _steps(error.__traceback__):
            return _line(code, number) if self.owns(code) else None
        return None


def _steps(step: TracebackType | None) -> Iterator[tuple[CodeType, int]]:
    for frame, number in traceback.walk_tb(step):
        yield frame.f_code, number


def _line(code: CodeType, number: int | None) -> Line:
    return Line(code.co_filename, number or code.co_firstlineno, code.co_qualname)


def _name(frame: FrameType) -> str:
    """As a user would write it: ``trio.sleep``, not ``trio._timeouts.sleep``."""
    if frame.f_code is RUN_SYNC:
        return "trio.to_thread.run_sync"  # Trio's own name for it is another one
    module = str(frame.f_globals.get("__name__", ""))
    parts = [part for part in module.split(".") if not part.startswith("_")]
    return ".".join([*parts, frame.f_code.co_qualname])


def _code_of(handler: Any) -> CodeType:
    function = handler
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None:
        code = getattr(type(function).__call__, "__code__", None)
    return code if isinstance(code, CodeType) else OwnCode.__init__.__code__
