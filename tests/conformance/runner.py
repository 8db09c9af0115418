"""Runs the scenarios of one server and driver: side by side in one event loop.

Most scenarios wait for timers of the server, so running them together takes little longer than
the longest of them. Every scenario has its own connection and its own queues, so that they do
not see each other; one that needs the whole server to itself says so and gets one.

A scenario that fails while the machine stood still (see stalls.py) is run again, on a server of
its own; one that fails on a machine that did not has failed.
"""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.conformance import scenarios
from tests.conformance.configs import KEYS, NO_KEYS, TLS
from tests.conformance.loops import AsyncioLoop, TrioLoop
from tests.conformance.registry import SCENARIOS, Env
from tests.conformance.servers import Server, ServerError
from tests.conformance.stalls import StallWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.conformance.face import Face
    from tests.conformance.loops import Loop
    from tests.conformance.registry import Scenario

# So many that the run is short, so few that two cores keep up with the timers.
AT_ONCE = 24
# Of a whole run; every scenario has a limit of its own, this is for one that ignores it.
LONGEST = 240.0
TRIES = 3

for _module in pkgutil.iter_modules(scenarios.__path__):
    importlib.import_module(f"{scenarios.__name__}.{_module.name}")


@dataclass
class Outcome:
    """What a scenario raised, or None, and what it had raised during stalls before."""

    error: BaseException | None = None
    during_stalls: list[BaseException] = field(default_factory=list)


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
) -> dict[str, Outcome]:
    """Run the named scenarios; how each of them ended."""
    loop, connector = _driver(driver)
    watch = StallWatch()
    outcomes: dict[str, Outcome] = {}
    chosen = [SCENARIOS[name] for name in names]

    async def one(chosen: Scenario, *, own_server: bool) -> None:
        if not own_server:
            await on(chosen, servers.shared(kind, chosen.config))
            return
        server = Server(kind, chosen.config, durable=chosen.own_server)
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
        failures: list[BaseException] = []
        while True:
            stalls = watch.stalls
            try:
                await one(chosen, own_server=chosen.own_server or bool(failures))
            except Exception as error:
                failures.append(error)
            else:
                outcomes[chosen.name] = Outcome(None, failures)
                return
            if watch.stalls == stalls or len(failures) == TRIES:
                outcomes[chosen.name] = Outcome(failures.pop(), failures)
                return

    async def main() -> None:
        places = loop.semaphore(AT_ONCE)

        async def placed(chosen: Scenario) -> None:
            async with places:
                await kept(chosen)

        for task in [loop.start(placed, scenario) for scenario in chosen]:
            await task.result()

    # All of them now: a start that holds up the loop later costs the scenarios under way their
    # leases on a busy machine.
    try:
        for scenario in chosen:
            if not scenario.own_server:
                servers.shared(kind, scenario.config)
    except ServerError as error:
        # One server that does not start speaks for all that would be tried after it.
        return {scenario.name: Outcome(error) for scenario in chosen}

    async def bounded() -> None:
        with contextlib.suppress(TimeoutError):
            await loop.limited(LONGEST, main)

    with watch.running():
        loop.run(bounded)
    for scenario in chosen:
        late = TimeoutError(f"not ended {LONGEST} s after the run began, whatever its own limit")
        outcomes.setdefault(scenario.name, Outcome(late))
    return outcomes
