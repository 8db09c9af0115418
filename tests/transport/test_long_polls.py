"""Calls that wait at the peer for long leave room for those that are answered at once."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from sepp_trio.transport import Channel, open_channel

from .peer import ECHO, Network


async def poll(channel: Channel) -> None:
    await channel.unary(ECHO, b"poll", long_poll=True)


@pytest.mark.parametrize(("limit", "polls"), [(1, 1), (2, 1), (8, 7), (100, 87), (4096, 4032)])
async def test_long_polls_never_take_the_last_streams(
    autojump_clock: trio.testing.MockClock, limit: int, polls: int
) -> None:
    network = Network(lambda peer: peer.greet({3: limit}))
    async with open_channel(network.connect, authority="peer") as channel:
        peer = network.peers[0]
        async with trio.open_nursery() as nursery:
            for _ in range(limit):
                nursery.start_soon(poll, channel)
            await trio.testing.wait_all_tasks_blocked()
            assert channel.statistics().calls_open == polls
            assert channel.statistics().calls_waiting == limit - polls
            requests = [await peer.request() for _ in range(polls)]
            if limit > 1:
                for urgent in (False, True):
                    nursery.start_soon(lambda u=urgent: channel.unary(ECHO, b"call", urgent=u))
                    call = await peer.request()
                    assert call.message == b"call"
                    await peer.answer(call.stream, b"reply")
                    await trio.testing.wait_all_tasks_blocked()
                    assert channel.statistics().calls_open == polls
                # The next one begins as soon as one is answered.
                await peer.answer(requests[0].stream, b"reply")
                assert (await peer.request()).message == b"poll"
            nursery.cancel_scope.cancel()


async def test_long_polls_and_other_calls_begin_in_turns(
    autojump_clock: trio.testing.MockClock,
) -> None:
    network = Network()
    async with open_channel(network.connect, authority="peer") as channel:
        peer = network.peers[0]
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(channel.unary, ECHO, b"call")
            for _ in range(3):
                nursery.start_soon(poll, channel)
            await trio.testing.wait_all_tasks_blocked()
            messages = [(await peer.request()).message for _ in range(6)]
            nursery.cancel_scope.cancel()
    assert messages == [b"call", b"poll"] * 3
