"""The conformance suite's parameters: server x driver x scenario."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.register_assert_rewrite(
    *(f"tests.conformance.{name}" for name in ("scenarios", "probes", "face", "frames", "registry"))
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance.runner import Servers


@pytest.fixture(scope="session")
def conformance_servers() -> Iterator[Servers]:
    """The server processes of the whole run."""
    from tests.conformance.runner import Servers

    servers = Servers()
    yield servers
    servers.close()
