"""An embedded server behind a fault plan, with a client on either side of the plan."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import trio

from sepp_trio import EnqueueRequest, Job, ReserveOptions, SeppClient, open_client
from sepp_trio.testing import (
    Fault,
    FaultPlan,
    FaultProxy,
    FragileServer,
    ProxiedCall,
    open_fault_proxy,
    open_fragile_server,
)


class Log:
    """What passed the proxy: what happened, to which kind of call, when."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, float]] = []

    def asked(self, call: ProxiedCall) -> None:
        self._note("asked", call)

    def answered(self, call: ProxiedCall) -> None:
        self._note("answered", call)

    def reset(self, call: ProxiedCall) -> None:
        self._note("reset", call)

    def lost(self, call: ProxiedCall) -> None:
        self._note("lost", call)

    def of(self, rpc: str) -> list[str]:
        """What happened to calls of a kind."""
        return [event for event, kind, _ in self.events if kind == rpc]

    def _note(self, event: str, call: ProxiedCall) -> None:
        self.events.append((event, call.rpc, trio.current_time()))


@dataclass
class World:
    """``client`` suffers from the plan, ``other`` does not."""

    server: FragileServer
    proxy: FaultProxy
    client: SeppClient
    other: SeppClient
    log: Log

    async def job(self, lease: float = 30.0) -> Job:
        """A job that the client has reserved."""
        await self.other.enqueue(EnqueueRequest("q", "t", max_attempts=9))
        [job] = await self.client.reserve(ReserveOptions(["q"], lease, wait_timeout=0))
        return job

    async def again(self) -> list[Job]:
        """What can be reserved now, by somebody else."""
        return await self.other.reserve(ReserveOptions(["q"], 30, wait_timeout=0, max_jobs=9))


@asynccontextmanager
async def faults(*plan: Fault) -> AsyncIterator[World]:
    """A world in which these faults happen; its clock is at 0."""
    log = Log()
    async with (
        open_fragile_server(epoch_ms=1_800_000_000_000) as server,
        open_client(server.connect) as other,
        open_fault_proxy(server.connect, FaultPlan(plan), server=server, observer=log) as proxy,
        open_client(proxy.connect, rpc_timeout=5) as client,
    ):
        yield World(server, proxy, client, other, log)
