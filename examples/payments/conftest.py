"""The tests' fixture."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from .shop import Shop


@pytest.fixture
def shop() -> Iterator[Shop]:
    with closing(Shop()) as shop:
        yield shop
