"""What comes out of the command line's nursery: one failure as itself, several as a group."""

from __future__ import annotations

import os
import signal

import pytest
import trio
import trio.testing

from sepp_trio.cli._nursery import on_signals, plain_nursery


async def fail(error: Exception) -> None:
    raise error


async def test_a_single_failure_comes_as_itself() -> None:
    cause = ValueError("why")
    error = OSError("what")
    error.__cause__ = cause
    with pytest.raises(OSError, match="what") as caught:
        async with plain_nursery() as nursery:
            nursery.start_soon(fail, error)
    assert caught.value.__cause__ is cause


async def test_a_failure_in_nested_nurseries_comes_as_itself() -> None:
    with pytest.raises(KeyError):
        async with plain_nursery(), trio.open_nursery() as inner:
            inner.start_soon(fail, KeyError())


async def test_two_failures_stay_a_group() -> None:
    async def fail_twice() -> None:
        async with plain_nursery() as nursery:
            nursery.start_soon(fail, ValueError())
            nursery.start_soon(fail, KeyError())

    with pytest.raises(ExceptionGroup):
        await fail_twice()


async def test_each_signal_is_acted_on() -> None:
    seen: list[signal.Signals] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(on_signals, seen.append, signal.SIGTERM, signal.SIGHUP)
        for number in (signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
            await trio.testing.wait_all_tasks_blocked(0.05)
        nursery.cancel_scope.cancel()
    assert seen == [signal.SIGTERM, signal.SIGHUP]
