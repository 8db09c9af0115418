"""All tests here run against the real clock."""

from __future__ import annotations

import pytest

from tests.groups import in_one_process


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    in_one_process(items, __file__)
