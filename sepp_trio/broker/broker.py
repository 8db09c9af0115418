"""``open_broker``: the parts of the embedded server, put together, from opening to close."""

from __future__ import annotations

import dataclasses
import logging
import math
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, NamedTuple, TypeVar

import trio
from tricycle import open_service_nursery

from sepp_trio.client import SeppClient, open_client
from sepp_trio.retry import RetryPolicy
from sepp_trio.transport.server import GrpcServer, tls_listener
from sepp_trio.types import Duration

from ._changes import Observer
from ._clock import BrokerClock
from ._listen import listen, tls_context
from .committer import Committer, CommitterStatistics
from .config import BrokerConfig
from .engine import Engine
from .health import HealthService
from .service import ApiKeyCheck, QueueService, ServerCodec
from .store import Store

T = TypeVar("T")

log = logging.getLogger("sepp_trio.broker")


@dataclasses.dataclass(frozen=True, slots=True)
class BrokerStatistics:
    """``queues``: live jobs (ready, scheduled, leased) of each queue that has any."""

    queues: Mapping[str, int]
    committer: CommitterStatistics


class Broker:
    """An embedded server; made by :func:`open_broker`, works until its block ends."""

    def __init__(
        self, config: BrokerConfig, store: Store, committer: Committer, service: QueueService
    ) -> None:
        self._config = config
        self._store = store
        self._committer = committer
        self._drained = trio.Event()
        health = HealthService(service.name, self._drained.wait)
        self._server = GrpcServer(
            {**service.handlers(), **health.handlers()},
            codec=ServerCodec(),
            config=dataclasses.replace(
                config.transport, max_message_bytes=config.limits.max_message_bytes
            ),
            authorize=ApiKeyCheck(config, service.name),
        )
        # Where connections in memory are served; there until the drain is over.
        self._connections: trio.Nursery | None = None
        # Whatever serves connections, and the event of its end.
        self._serving: dict[trio.CancelScope, trio.Event] = {}

    def open_client(
        self,
        *,
        api_key: str | None = None,
        retry_policy: RetryPolicy | None = None,
        rpc_timeout: Duration = 30.0,
        connect_timeout: Duration = 5.0,
        max_receive_message_bytes: int = 64 * 2**20,
        keepalive_interval: Duration = 10.0,
        keepalive_timeout: Duration = 4.0,
    ) -> AbstractAsyncContextManager[SeppClient]:
        """A client that needs no socket; takes the options of :func:`sepp_trio.open_client`,
        those of TLS apart, and is used and ends like one."""
        return open_client(
            self._connect,
            api_key=api_key,
            retry_policy=retry_policy,
            rpc_timeout=rpc_timeout,
            connect_timeout=connect_timeout,
            max_receive_message_bytes=max_receive_message_bytes,
            keepalive_interval=keepalive_interval,
            keepalive_timeout=keepalive_timeout,
        )

    async def _connect(self) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        if self._connections is None:
            raise OSError("the broker is closed")
        from trio.testing import memory_stream_pair  # here, for it imports pytest if it is there

        ours, theirs = memory_stream_pair()
        self._connections.start_soon(self._server.serve_stream, ours)
        return theirs

    async def serve(
        self,
        address: str | None = None,
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve clients at ``host:port`` or ``unix:/path``; by default where the configuration
        says. Reports the address with the real port through ``task_status``.

        Uses TLS if the configuration names a certificate. Returns when the broker has drained;
        a cancel ends all its connections at once, and gives back what they did not take.

        :raises BrokerError: cannot listen there; says why.
        :raises ConfigError: the certificate cannot be used.
        :raises ValueError: it is no address.
        """
        context = tls_context(self._config.server)
        listening = await listen(self._config.server.listen_addr if address is None else address)
        try:
            listeners: list[trio.abc.Listener[Any]] = list(listening.listeners)
            if context is not None:
                listeners = [tls_listener(listener, context) for listener in listeners]
            elif self._config.api_keys and not listening.address.startswith("unix:"):
                log.warning("API keys reach %s in plain text: TLS is off", listening.address)
            with self._as_serving():
                task_status.started(listening.address)
                await self._server.serve(listeners)
        finally:
            with trio.CancelScope(shield=True):
                await listening.aclose()

    def start_drain(self) -> None:
        """Begin to stop: answer the reserves that wait, take no connections, let calls that run
        end. :meth:`serve` returns when the clients are gone, or ``transport.drain_timeout``
        seconds later."""
        self._drained.set()
        self._committer.start_drain()
        self._server.start_drain()

    def statistics(self) -> BrokerStatistics:
        """What it holds and does."""
        return BrokerStatistics(self._store.depths(), self._committer.statistics())

    async def _run_connections(self, *, task_status: trio.TaskStatus[None]) -> None:
        with self._as_serving():
            try:
                async with trio.open_nursery() as self._connections:
                    task_status.started()
                    await self._drained.wait()
                    # From here on the server takes no connections; those that there are end.
            finally:
                self._connections = None

    @contextmanager
    def _as_serving(self) -> Iterator[None]:
        """What runs in this block is waited for, or cancelled, before the broker closes."""
        ended = trio.Event()
        with trio.CancelScope() as scope:
            self._serving[scope] = ended
            try:
                yield
            finally:
                del self._serving[scope]
                ended.set()

    async def _finish(self) -> None:
        """Drain, and wait until nobody is served any more."""
        self.start_drain()
        for ended in tuple(self._serving.values()):
            await ended.wait()

    async def _close(self) -> None:
        """End what is left of the connections, and apply what they have left behind."""
        for scope in self._serving:
            scope.cancel(reason="the broker closes")
        await self._finish()
        self._committer.stop()


@asynccontextmanager
async def open_broker(
    path: str | os.PathLike[str] | None = None, *, config: BrokerConfig | None = None
) -> AsyncIterator[Broker]:
    """Run an embedded server over the file at ``path``, made if it is not there; without one,
    in memory, gone with the block.

    The file belongs to this broker alone for as long as the block runs. At its end the clients
    are told and get ``config.transport.drain_timeout`` seconds to finish their calls; a block
    that ends by an exception or a cancel ends them at once. Jobs under a lease stay leased.

    On a clock that leaps when all tasks wait (``trio.testing.MockClock`` with
    ``autojump_threshold``) the work on a file is done in the loop, not in a thread.

    :raises StoreError: the file cannot be used; says why.
    """
    async with _parts(path, config or BrokerConfig()) as parts:
        broker = Broker(parts.config, parts.store, parts.committer, parts.service)
        async with _running(broker):
            yield broker


class Parts(NamedTuple):
    """What a broker is put together from."""

    config: BrokerConfig
    store: Store
    engine: Engine
    clock: BrokerClock
    committer: Committer
    service: QueueService


@asynccontextmanager
async def _parts(
    path: str | os.PathLike[str] | None, config: BrokerConfig, observer: Observer | None = None
) -> AsyncIterator[Parts]:
    """Open the store, and close it."""
    name = None if path is None else os.fspath(path)
    threaded = name is not None and not _clock_leaps()
    clock = BrokerClock()
    store = await _off_loop(lambda: Store(name, config.storage.persist_mode), threaded=threaded)
    try:
        engine = Engine(store, config)
        committer = Committer(store, engine, clock, threaded=threaded, observer=observer)
        service = QueueService(config, engine, committer, clock)
        yield Parts(config, store, engine, clock, committer, service)
    finally:
        with trio.CancelScope(shield=True):
            # No deadline: it waits for the disk, once, and nothing else can be done.
            await _off_loop(store.close, threaded=threaded)


@asynccontextmanager
async def _running(broker: Broker) -> AsyncIterator[None]:
    """Run the broker's tasks around the block; an exception of the block comes out as it is."""
    failure: BaseException | None = None
    async with open_service_nursery() as nursery:
        nursery.start_soon(broker._committer.run)
        await nursery.start(broker._run_connections)
        try:
            yield
            await broker._finish()
        except BaseException as error:
            failure = error  # raised below, outside the nursery: that would make a group of it
        with trio.CancelScope(shield=True):
            await broker._close()
    try:
        if failure is not None:
            raise failure
    finally:
        del failure  # it refers to this frame, which refers to it


def _clock_leaps() -> bool:
    threshold: float = getattr(trio.lowlevel.current_clock(), "autojump_threshold", math.inf)
    return threshold < math.inf


async def _off_loop(call: Callable[[], T], *, threaded: bool) -> T:
    return await trio.to_thread.run_sync(call) if threaded else call()
