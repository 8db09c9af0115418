"""All async tests here run on a clock that leaps."""

from __future__ import annotations

import pytest

from tests.virtual_time import mark_room
from tests.worker.fixtures import bench as bench


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_room(items, __file__)
