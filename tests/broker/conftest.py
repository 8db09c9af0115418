"""The engine over a database in memory and over one in a file: the rules are the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sepp_trio.broker.config import BrokerConfig

from .helpers import Rig


@pytest.fixture(params=["memory", "file"])
def make_rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Rig]]:
    """Makes a rig for a configuration; at most one per test in a file."""
    rigs: list[Rig] = []

    def make(config: BrokerConfig | None = None) -> Rig:
        path = str(tmp_path / "jobs.db") if request.param == "file" else None
        rigs.append(Rig(config, path))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    """A rig with the defaults."""
    return make_rig()
