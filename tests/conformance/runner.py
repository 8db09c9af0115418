"""Runs the scenarios of one server and driver: side by side in one event loop.

Most scenarios wait for timers of the server, so running them together takes little longer than
the longest of them. Every scenario has its own connection and its own queues, so that they do
not see each other; one that needs the whole server to itself says so and gets one.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
from typing import TYPE_CHECKING

from tests.conformance import scenarios
from tests.conformance.configs import KEYS, NO_KEYS, TLS
from tests.conformance.loops import AsyncioLoop, TrioLoop
from tests.conformance.registry import SCENARIOS, Env
from tests.conformance.servers import Server, ServerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.conformance.face import Face
    from tests.conformance.loops import Loop
    from tests.conformance.registry import Scenario

# So many that the run is short, so few that two cores keep up with the timers.
AT_ONCE = 24
# Of a whole run; every scenario has a limit of its own, this is for one that ignores it.
LONGEST = 150.0

for _module in pkgutil.iter_modules(scenarios.__path__):
    importlib.import_module(f"{scenarios.__name__}.{_module.name}")


class Servers:
    """Server processes by kind and configuration, started when first asked for."""

    def __init__(self) -> None:
        self._shared: dict[tuple[str, str], Server] = {}

    def shared(self, kind: str, config: str) -> Server:
        """The one process of this kind and configuration."""
        server = self._shared.get((kind, config))
        if server is None:
            server = self._shared[kind, config] = Server(kind, config).start()
        return server

    def close(self) -> None:
        """End them all."""
        for server in self._shared.values():
            server.close()


def _driver(name: str) -> tuple[Loop, Callable[..., contextlib.AbstractAsyncContextManager[Face]]]:
    if name == "sepp_py":
        from tests.conformance import driver_sepp_py

        return AsyncioLoop(), driver_sepp_py.connect
    from tests.conformance import driver_sepp_trio

    return TrioLoop(), driver_sepp_trio.connect


def run_scenarios(
    servers: Servers, kind: str, driver: str, names: Iterable[str]
) -> dict[str, BaseException | None]:
    """Run the named scenarios; what each of them raised, or None."""
    loop, connector = _driver(driver)
    outcomes: dict[str, BaseException | None] = {}
    chosen = [SCENARIOS[name] for name in names]
    # All of them now: a start that holds up the loop later costs the scenarios under way their
    # leases on a busy machine.
    for scenario in chosen:
        if not scenario.own_server:
            servers.shared(kind, scenario.config)

    async def one(chosen: Scenario) -> None:
        if not chosen.own_server:
            await on(chosen, servers.shared(kind, chosen.config))
            return
        server = Server(kind, chosen.config, durable=True)
        try:
            await loop.in_thread(server.start)
            await on(chosen, server)
        finally:
            server.close()

    async def on(chosen: Scenario, server: Server) -> None:

        async def body() -> None:
            async with contextlib.AsyncExitStack() as stack:
                env = Env(chosen.name, driver, loop, server, connector, stack)
                stack.push_async_callback(env.stop_tasks)
                # Keys and certificates are some scenarios' subject: they connect by themselves.
                if chosen.config not in (KEYS, NO_KEYS, TLS):
                    env.face = await env.connect()
                await chosen.function(env)

        await loop.limited(chosen.limit, body)

    async def kept(chosen: Scenario) -> None:
        try:
            await one(chosen)
        except Exception as error:
            outcomes[chosen.name] = error
        else:
            outcomes[chosen.name] = None

    async def main() -> None:
        places = loop.semaphore(AT_ONCE)

        async def placed(chosen: Scenario) -> None:
            async with places:
                await kept(chosen)

        for task in [loop.start(placed, scenario) for scenario in chosen]:
            await task.result()

    try:
        for scenario in chosen:
            if not scenario.own_server:
                servers.shared(kind, scenario.config)
    except ServerError as error:
        # One server that does not start speaks for all that would be tried after it.
        return {scenario.name: error for scenario in chosen}

    async def bounded() -> None:
        with contextlib.suppress(TimeoutError):
            await loop.limited(LONGEST, main)

    loop.run(bounded)
    for scenario in chosen:
        late = TimeoutError(f"not ended {LONGEST} s after the run began, whatever its own limit")
        outcomes.setdefault(scenario.name, late)
    return outcomes
