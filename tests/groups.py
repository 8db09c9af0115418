"""Which tests stay together when pytest-xdist runs the suite in several processes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest


def in_one_process(items: Iterable[pytest.Item], conftest: str) -> None:
    """Let the tests beside ``conftest`` run one after the other, and before those in no group.

    For rooms that work against the real clock: two of them wait more than they work, and so get
    along on two cores; all else then comes when they have ended.
    """
    room = Path(conftest).parent
    for item in items:
        if room in item.path.parents:
            item.add_marker(pytest.mark.xdist_group(room.name))
