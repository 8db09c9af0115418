"""Where in the user's own code a task stands."""

from __future__ import annotations

import functools
import inspect
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Final, NamedTuple

import trio

import sepp_trio

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
        name = None
        current = task
        while True:
            line: Line | None = None
            awaits: str | None = None
            for frame, number in current.iter_await_frames():
                if self.owns(frame.f_code):
                    line, awaits = _line(frame.f_code, number), None
                elif line is not None and awaits is None:
                    awaits = _name(frame)
            if current is not root and name is None:
                name = current.name
            if line is not None:
                return Place(line, awaits if current is task else None, name)
            nursery = current.parent_nursery
            if current is root or nursery is None:
                return None
            current = nursery.parent_task

    def in_thread(self, frame: FrameType | None) -> Line | None:
        """The innermost own line of a thread's stack."""
        while frame is not None:
            if self.owns(frame.f_code):
                return _line(frame.f_code, frame.f_lineno)
            frame = frame.f_back
        return None

    def innermost(self, error: BaseException) -> Line | None:
        """The innermost own line that an exception came from."""
        line = None
        for code, number in _steps(error.__traceback__):
            if self.owns(code):
                line = _line(code, number)
        return line

    def caught(self, error: BaseException) -> Line | None:
        """The own line at which an exception that is over was caught; ``None`` if it was
        caught in a library."""
        for code, number in _steps(error.__traceback__):
            return _line(code, number) if self.owns(code) else None
        return None


def _steps(traceback: TracebackType | None) -> Iterator[tuple[CodeType, int]]:
    while traceback is not None:
        yield traceback.tb_frame.f_code, traceback.tb_lineno
        traceback = traceback.tb_next


def _line(code: CodeType, number: int | None) -> Line:
    return Line(code.co_filename, number or code.co_firstlineno, code.co_qualname)


def _name(frame: FrameType) -> str:
    """As a user would write it: ``trio.sleep``, not ``trio._timeouts.sleep``."""
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
