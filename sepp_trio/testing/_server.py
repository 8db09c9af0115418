"""An embedded server in memory whose process can be killed and whose clock can be set.

What is stored outlives the restarts, as a disk would. For fault plans: see ``RestartServer`` and
``JumpServerClock``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeAlias

import trio

from sepp_trio.broker import Broker, BrokerConfig
from sepp_trio.broker._clock import BrokerClock
from sepp_trio.broker.broker import _running
from sepp_trio.broker.committer import Committer
from sepp_trio.broker.engine import Engine
from sepp_trio.broker.service import QueueService
from sepp_trio.broker.store import Store
from sepp_trio.types import LeasedJob

from ._in_trio import check_in_trio
from ._recorder import Recorder
from ._recording import end_lease

EngineFactory: TypeAlias = Callable[[Store, BrokerConfig], Engine]


class SettableClock(BrokerClock):
    """The broker's clock, and somebody who sets it."""

    def __init__(self, epoch_ms: int | None = None) -> None:
        """Start at ``epoch_ms``, or now. Needs a running Trio loop."""
        super().__init__()
        if epoch_ms is not None:
            self._opened_ms = epoch_ms

    def jump(self, seconds: float) -> None:
        """Set it ahead, or back."""
        self._opened_ms += round(seconds * 1000)


class _Killed(Exception):
    """Ends a broker's block without a goodbye."""


class FragileServer:
    """Made by :func:`open_fragile_server`. ``broker`` is the one that runs, if one does."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: SettableClock,
        make_engine: EngineFactory,
        recorder: Recorder | None,
    ) -> None:
        self.clock = clock
        self.store = Store(None)
        self.broker: Broker | None = None
        self._config = config
        self._make_engine = make_engine
        self._observer = None if recorder is None else recorder.observe
        self._engine: Engine | None = None
        self._committer: Committer | None = None
        self._stop = trio.Event()
        self._drain = False
        self._up = trio.Event()
        self._down = 0.0

    async def connect(self) -> trio.abc.Stream:
        """A new connection. A checkpoint.

        :raises OSError: the server is down.
        """
        if self.broker is None:
            await trio.lowlevel.checkpoint()
            raise ConnectionRefusedError("the server is down")
        return await self.broker._connect()

    async def restart(
        self, down: float, *, drain: bool = False, config: BrokerConfig | None = None
    ) -> None:
        """Stop the server, and wait until it is back, ``down`` seconds later, perhaps with other
        settings. One that is down already stays down as it was."""
        if config is not None:
            self._config = config
        if self.broker is not None:
            self._down, self._drain = down, drain
            self._up = trio.Event()
            self._stop.set()
        await self._up.wait()

    async def jump_clock(self, seconds: float) -> None:
        """Set the clock; what is due by it then is done at once."""
        self.clock.jump(seconds)
        if self._committer is not None and self.broker is not None:
            await self._committer.submit(lambda _: None)

    async def lose_lease(self, job: LeasedJob) -> None:
        """Let the lease of a job run out now: see :meth:`RecordingBroker.lose_lease`.

        :raises OSError: the server is down.
        :raises JobNotFoundError: nobody holds this attempt of this job.
        """
        if self.broker is None:
            await trio.lowlevel.checkpoint()
            raise ConnectionRefusedError("the server is down")
        assert self._committer is not None
        assert self._engine is not None
        await end_lease(self._committer, self._engine, job)

    async def run(self) -> None:
        """Run one broker after the other, until cancelled."""
        while True:
            with suppress(_Killed):
                await self._run_once()
            await trio.sleep(self._down)

    async def _run_once(self) -> None:
        self._engine = engine = self._make_engine(self.store, self._config)
        self._committer = committer = Committer(
            self.store, engine, self.clock, threaded=False, observer=self._observer
        )
        service = QueueService(self._config, engine, committer, self.clock)
        broker = Broker(self._config, self.store, committer, service)
        self._stop = trio.Event()
        try:
            async with _running(broker):
                self.broker = broker
                self._up.set()
                await self._stop.wait()
                self.broker = None
                if not self._drain:
                    raise _Killed
        finally:
            self.broker = None


@asynccontextmanager
async def open_fragile_server(
    config: BrokerConfig | None = None,
    *,
    epoch_ms: int | None = None,
    make_engine: EngineFactory = Engine,
    recorder: Recorder | None = None,
) -> AsyncIterator[FragileServer]:
    """An embedded server in memory that can be restarted, and its clock set.

    Args:
        config: As for ``open_broker``.
        epoch_ms: What its clock shows at first; the real time if not given.
        make_engine: Makes the engine of each new process, over the same store.
        recorder: Keeps the history of every job, over all restarts.
    """
    check_in_trio("open_fragile_server")
    clock = SettableClock(epoch_ms)
    server = FragileServer(config or BrokerConfig(), clock, make_engine, recorder)
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run)
            await server._up.wait()
            try:
                yield server
            except BaseException as error:
                failure = error  # raised below: the nursery would make a group of it
            nursery.cancel_scope.cancel(reason="the server's block has ended")
    finally:
        server.store.close()
    if failure is not None:
        raise failure
