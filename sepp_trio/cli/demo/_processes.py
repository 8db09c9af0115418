"""The demo's child processes: started, read line by line, and never left behind."""

from __future__ import annotations

import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

_STOP_PATIENCE = 5.0
"""Seconds between asking a child to stop and killing it."""


@asynccontextmanager
async def python_child(module: str, arguments: Sequence[str]) -> AsyncIterator[trio.Process]:
    """Run `python -m module …` with its standard output on a pipe.

    On every way out the child is gone: asked to stop with SIGTERM, killed after some seconds.
    It shares our standard error. Its process group is its own: Ctrl-C is ours to handle, or a
    child that is still starting would die of it with a traceback.
    """
    process = await trio.lowlevel.open_process(
        [sys.executable, "-m", module, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        process_group=0,
    )
    try:
        yield process
    finally:
        with trio.CancelScope(shield=True):
            await stop(process)


async def stop(process: trio.Process) -> int:
    """End the child, gracefully if it can, and give its exit code. A checkpoint."""
    if process.returncode is None:
        process.terminate()
        with trio.move_on_after(_STOP_PATIENCE):
            await process.wait()
    if process.returncode is None:
        process.kill()
    return await process.wait()


async def lines_of(process: trio.Process) -> AsyncGenerator[str, None]:
    """What the child writes to its standard output, line by line, until it closes it.

    A last line without its end, cut off by a kill, is dropped.
    """
    assert process.stdout is not None  # opened as a pipe above
    rest = b""
    async for piece in process.stdout:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.decode()
