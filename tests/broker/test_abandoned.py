"""A reserve whose caller leaves, at any point of its life: nothing stays leased to nobody."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from sepp_trio.broker import Broker, open_broker
from sepp_trio.transport import open_channel
from sepp_trio.wire import records

from .calls import add, channel_to, reserve, status

INFO = records.GetServerInfoRequest()


async def test_a_waiting_reserve_that_is_cancelled_is_gone(autojump_clock: MockClock) -> None:
    async with open_broker() as broker, channel_to(broker) as channel:
        for _ in range(3):
            with trio.move_on_after(1):
                await reserve(channel, wait=20)
            await wait_all_tasks_blocked()
            assert broker.statistics().committer.parked == 0
        await add(channel)
        (one,) = await reserve(channel)
        assert one.attempt == 1


async def test_a_waiting_reserve_of_a_connection_that_ends_is_gone(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as broker:
        async with channel_to(broker) as channel, trio.open_nursery() as nursery:
            nursery.start_soon(lambda: reserve(channel, wait=20))
            await wait_all_tasks_blocked()
            assert broker.statistics().committer.parked == 1
            nursery.cancel_scope.cancel()
        await wait_all_tasks_blocked()
        assert broker.statistics().committer.parked == 0


async def test_a_reserve_whose_deadline_passes_takes_nothing(autojump_clock: MockClock) -> None:
    async with open_broker() as broker, channel_to(broker) as channel:
        with pytest.raises(trio.TooSlowError):
            with trio.fail_after(5):
                await reserve(channel, wait=20)
        await trio.sleep(1)
        assert broker.statistics().committer.parked == 0
        await add(channel)
        (one,) = await reserve(channel, wait=1)
        assert one.attempt == 1


class SlowStream(trio.abc.Stream):
    """A stream whose far end stops taking bytes when it is told to."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self.open = trio.Event()
        self.open.set()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.open.wait()
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        self.open.set()
        await self._stream.aclose()


@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("leaves", ["resets the call", "closes the connection"])
async def test_jobs_whose_answer_never_left_are_given_back(
    leaves: str, waiting: bool, autojump_clock: MockClock
) -> None:
    """Trials 38, 39: the lease is taken back at once, and the attempt is not spent."""
    async with open_broker() as broker, channel_to(broker) as other, trio.open_nursery() as nursery:
        slow, connect = slow_connection(broker, nursery)
        if not waiting:
            await add(other)
        async with open_channel(connect, authority="localhost") as channel:
            # The first answer hangs in its write, and the second waits behind it.
            slow.open = trio.Event()
            nursery.start_soon(lambda: status(channel, "GetServerInfo", INFO))
            await wait_all_tasks_blocked()
            async with trio.open_nursery() as calls:
                calls.start_soon(lambda: reserve(channel, wait=20))
                await wait_all_tasks_blocked()
                if waiting:
                    await add(other)
                    await wait_all_tasks_blocked()
                # Leased to a caller whom the answer does not reach.
                assert await reserve(other) == []
                if leaves == "resets the call":
                    calls.cancel_scope.cancel()
                else:
                    await slow.aclose()
                    nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                (one,) = await reserve(other, wait=5)
                assert one.attempt == 1
        nursery.cancel_scope.cancel()


def slow_connection(
    broker: Broker, nursery: trio.Nursery
) -> tuple[SlowStream, Callable[[], Awaitable[trio.abc.Stream]]]:
    """A connection whose answers can be held up."""
    ours, theirs = memory_stream_pair()
    slow = SlowStream(ours)

    async def connect() -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        nursery.start_soon(broker._server.serve_stream, slow)
        return theirs

    return slow, connect
