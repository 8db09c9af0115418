"""Connections in memory of which none can die: days of signs of life would take real time."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sepp_trio.broker import BrokerConfig

NO_KEEPALIVE: Final = 10.0**9
"""Seconds."""


def lasting(config: BrokerConfig) -> BrokerConfig:
    """The settings, for a server that does not ask its clients for signs of life."""
    transport = replace(
        config.transport, keepalive_interval=NO_KEEPALIVE, stall_timeout=NO_KEEPALIVE
    )
    return replace(config, transport=transport)
