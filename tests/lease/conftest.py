"""All async tests here run on a clock that leaps."""

from __future__ import annotations

import pytest

from tests.virtual_time import mark_room
from tests.worker.fixtures import broker as broker
from tests.worker.fixtures import calls as calls
from tests.worker.fixtures import client as client
from tests.worker.fixtures import proxy as proxy
from tests.worker.fixtures import put as put


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_room(items, __file__)
