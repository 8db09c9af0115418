"""The tests' fixture."""

from __future__ import annotations

from pathlib import Path

import pytest

from .inbox import Inbox


@pytest.fixture
def inbox(tmp_path: Path) -> Inbox:
    return Inbox(tmp_path)
