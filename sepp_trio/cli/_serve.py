"""`sepp-trio serve`: the embedded server as a program."""

from __future__ import annotations

import logging
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from ..broker import BrokerConfig, open_broker
from ..errors import BrokerError, ConfigError
from ._nursery import on_signals, plain_nursery

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_LISTEN = "127.0.0.1:50051"


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What the command line asks for."""

    database: Path | None
    """The file for the jobs; in memory when None."""
    listen: str | None
    """The address; the configuration's, or the default, when None."""
    config: Path | None
    """The TOML file; all defaults when None."""

    def load(self) -> tuple[BrokerConfig, str]:
        """The configuration, and where to listen. Raises `ConfigError`."""
        if self.config is None:
            return BrokerConfig(), self.listen or DEFAULT_LISTEN
        config = BrokerConfig.from_toml(self.config)
        return config, self.listen or config.server.listen_addr


async def serve(options: ServeOptions) -> int:
    """Serve until a signal comes; gives the exit code.

    The first signal drains: parked reserves are answered, calls under way finish. The second one
    ends it at once.

    Raises:
        BrokerError: it cannot start; says why.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    config, listen = options.load()
    async with open_broker(options.database, config=config) as broker, plain_nursery() as nursery:
        draining = False

        def stop(number: signal.Signals) -> None:
            nonlocal draining
            if draining:
                nursery.cancel_scope.cancel(reason=number.name)
            draining = True
            broker.start_drain()

        async def until_drained(*, task_status: trio.TaskStatus[str]) -> None:
            await broker.serve(listen, task_status=task_status)
            nursery.cancel_scope.cancel(reason="drained")

        await nursery.start(on_signals, stop, signal.SIGINT, signal.SIGTERM)
        try:
            address = await nursery.start(until_drained)
        except ConfigError:
            raise
        except ValueError as error:
            raise BrokerError(f"cannot listen: {error}") from error
        print("listening on", address, flush=True)
        if options.database is None:
            print("no --db: the jobs are in memory and end with this process", file=sys.stderr)
    return 0
