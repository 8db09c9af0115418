"""The transport of both servers, frame by frame (see probes/)."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

import pytest

from tests.conformance import probes
from tests.conformance.probes.base import PROBES
from tests.conformance.servers import EMBEDDED, HOW_TO_GET_IT, REAL, Server, real_binary

if TYPE_CHECKING:
    from tests.conformance.runner import Servers

for _module in pkgutil.iter_modules(probes.__path__):
    importlib.import_module(f"{probes.__name__}.{_module.name}")

_WITHOUT_REAL = pytest.mark.skipif(real_binary() is None, reason=HOW_TO_GET_IT)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        pytest.param(
            kind,
            name,
            id=f"{kind}-frames-{name}",
            marks=[pytest.mark.real_server, _WITHOUT_REAL] if kind == REAL else [],
        )
        for kind in (EMBEDDED, REAL)
        for name in PROBES
    ],
)
def test_transport(kind: str, name: str, conformance_servers: Servers) -> None:
    chosen = PROBES[name]
    if not chosen.own_server:
        chosen.function(conformance_servers.shared(kind, chosen.config))
        return
    server = Server(kind, chosen.config).start()
    try:
        chosen.function(server)
    finally:
        server.close()
