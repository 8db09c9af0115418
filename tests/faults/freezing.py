"""A TCP proxy that can stop to carry bytes without a word to either side."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio


class FreezingProxy:
    """Forwards to a port on loopback; made by :func:`freezing_proxy`."""

    def __init__(self, target: int) -> None:
        self.address = ""
        self.connections = 0
        self._target = target
        self._flowing = trio.Event()
        self._flowing.set()
        self._dead = 0

    def freeze(self) -> None:
        """Carry nothing, on connections old and new, until ``thaw``."""
        self._flowing = trio.Event()

    def thaw(self) -> None:
        """Carry what has waited, and the rest."""
        self._flowing.set()

    def freeze_for_good(self) -> None:
        """Carry nothing on the connections that there are; new ones work."""
        self._dead = self.connections

    async def serve_stream(self, stream: trio.SocketStream) -> None:
        """Forward one connection."""
        self.connections += 1
        number = self.connections
        await self._flowing.wait()
        server = await trio.open_tcp_stream("127.0.0.1", self._target)
        async with server, stream, trio.open_nursery() as nursery:
            nursery.start_soon(self._pump, number, stream, server, nursery.cancel_scope)
            nursery.start_soon(self._pump, number, server, stream, nursery.cancel_scope)

    async def _pump(
        self,
        number: int,
        source: trio.SocketStream,
        target: trio.SocketStream,
        scope: trio.CancelScope,
    ) -> None:
        try:
            async for data in source:
                await self._flowing.wait()
                if number <= self._dead:
                    await trio.sleep_forever()
                await target.send_all(data)
        except trio.BrokenResourceError:
            pass
        if number > self._dead:
            scope.cancel()
        else:
            await trio.sleep_forever()


@asynccontextmanager
async def freezing_proxy(target: int) -> AsyncIterator[FreezingProxy]:
    """A proxy around the block."""
    proxy = FreezingProxy(target)
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    host, port = listener.socket.getsockname()
    proxy.address = f"{host}:{port}"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, proxy.serve_stream, [listener])
        yield proxy
        nursery.cancel_scope.cancel()
