"""What the tests of the sweep share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from sepp_trio.testing import SweepFailure, cancellation_sweep

Handler = Callable[..., Any]


def line_of(function: Handler, mark: str = "# here") -> int:
    """The number of the line that ends with the mark."""
    lines, first = inspect.getsourcelines(function)
    [found] = [first + i for i, text in enumerate(lines) if text.rstrip().endswith(mark)]
    return found


async def failure_of(handler: Handler, **options: Any) -> SweepFailure:
    """What a sweep finds."""
    with pytest.raises(SweepFailure) as caught:
        await cancellation_sweep(handler, **options)
    return caught.value


class World:
    """A table and the effects that handlers of these tests work on."""

    def __init__(self) -> None:
        self.new()

    def new(self) -> None:
        """Forget it all."""
        self.rows: list[int] = []
        self.marks: set[int] = set()
        self.cleaned = False
