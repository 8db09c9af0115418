"""What requests and answers of all connections together may take, and that nothing of it leaks."""

from __future__ import annotations

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from sepp_trio.transport import Channel, Method, open_channel
from sepp_trio.transport._server_memory import Memory, MemoryShare
from sepp_trio.transport.server import ServerConfig
from tests.transport.hostile import BIG_WINDOW, RawClient, data, prefixed, reset, settings
from tests.transport.server_tools import ECHO, PARK, Harness, open_harness

REFUSED_STREAM = 7


def shares(count: int, **config: int) -> tuple[Memory, list[MemoryShare]]:
    memory = Memory(ServerConfig(**config))
    return memory, [MemoryShare(memory, lambda: None) for _ in range(count)]


def test_a_large_answer_leaves_half_of_what_is_left() -> None:
    _, (one, other) = shares(2, max_held_bytes=1000, max_unsent_bytes=600)
    assert one.allowance(0, 0) == 500
    assert one.allowance(500, 500) == 250
    one.add(unsent=500)
    assert other.allowance(0, 0) == 250


def test_who_has_not_taken_its_answers_gets_none() -> None:
    _, (one, other) = shares(2, max_held_bytes=1000, max_unsent_bytes=100)
    one.add(unsent=101)
    assert one.allowance(0, 0) == 0
    assert one.backlogged
    assert other.allowance(101, 101) == 0
    assert not other.backlogged


def test_who_has_no_more_than_its_share_gets_one_piece_at_least() -> None:
    _, (one, other) = shares(2, max_held_bytes=1000, max_unsent_bytes=5000)
    one.add(unsent=1500)
    assert one.allowance(0, 0) == 0
    assert one.backlogged
    assert other.allowance(0, 0) == 1
    other.add(unsent=400)
    assert other.allowance(0, 0) == 1
    assert not other.backlogged
    other.add(unsent=200)
    assert other.allowance(0, 0) == 0
    assert other.backlogged


def test_who_waits_for_others_is_told_when_there_is_room() -> None:
    told: list[str] = []
    memory = Memory(ServerConfig(max_held_bytes=1000))
    one, other = (MemoryShare(memory, lambda name=name: told.append(name)) for name in "ab")
    one.add(working=600)
    other.add(unsent=600)
    assert one.busy
    assert other.backlogged
    told.clear()
    other.add(unsent=-100)
    assert told == ["b"]
    other.add(unsent=-300)
    assert told == ["b", "b", "a", "b"]
    assert not one.busy
    assert not other.backlogged


def test_a_connection_that_is_gone_has_no_share() -> None:
    memory, (one, other) = shares(2, max_held_bytes=1000)
    one.add(requests=600)
    other.add(requests=500)
    assert one.greedy
    other.add(requests=-500)
    other.close()
    one.add(requests=500)
    assert memory.held == 1100
    assert one.greedy
    assert one.request_limit == 1000


async def nothing_is_held(harness: Harness) -> None:
    await wait_all_tasks_blocked()
    assert harness.server.memory.held == 0


async def test_requests_of_all_connections_are_bounded(autojump_clock: MockClock) -> None:
    async with open_harness(ServerConfig(max_held_bytes=100_000)) as harness:
        clients = [await harness.client({4: 0}, polite=False) for _ in range(4)]
        for client in clients:
            # 40 kB of a request that goes on.
            await client.send(
                client.head(1, ECHO), data(1, prefixed(b"x" * 50_000)[:40_000], end=False)
            )
            await wait_all_tasks_blocked()
        assert harness.server.memory.held <= 160_000
        for client in clients:
            await client.send(data(1, b"x" * 9_000, end=False))
            await wait_all_tasks_blocked()
        refused = [client for client in clients if await was_refused(client)]
        assert refused
        assert harness.server.memory.held <= 130_000
        polite = await harness.client()
        assert (await polite.request(ECHO, b"y" * 20_000)).messages == [b"y" * 20_000]
        for client in clients:
            await client.stream.aclose()
        await nothing_is_held(harness)


async def was_refused(client: RawClient) -> bool:
    with trio.move_on_after(0.1):
        await client.until(lambda: 1 in client.answers and client.answers[1].over)
    return 1 in client.answers and client.answers[1].reset == REFUSED_STREAM


async def test_nothing_is_read_while_too_much_is_at_work(autojump_clock: MockClock) -> None:
    async with open_harness(ServerConfig(max_buffered_bytes=50_000)) as harness:
        client = await harness.client()
        numbers = range(1, 41, 2)

        async def send() -> None:
            for number in numbers:
                await client.send(client.call(number, PARK, b"x" * 10_000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await wait_all_tasks_blocked()
            # Read by the piece, so a few more than five.
            assert len(harness.service.started) < 13
            other = await harness.client()
            assert (await other.request(ECHO, b"fine")).messages == [b"fine"]
            while len(harness.service.started) < len(numbers):
                harness.service.release.set()
                harness.service.release = trio.Event()
                await wait_all_tasks_blocked()
            harness.service.release.set()
            for number in numbers:
                assert (await client.answer(number)).messages == [b"x" * 10_000]
        await nothing_is_held(harness)


async def test_answers_of_all_connections_are_bounded(autojump_clock: MockClock) -> None:
    config = ServerConfig(max_held_bytes=100_000)
    async with open_harness(config) as harness:
        clients = [await harness.client({4: 0}, polite=False, credit=BIG_WINDOW) for _ in range(4)]
        for number in range(1, 21, 2):
            for client in clients:
                await client.send(client.call(number, ECHO, b"x" * 10_000))
                await wait_all_tasks_blocked()
        # 400 kB were asked for; requests that wait count as well.
        assert harness.server.memory.held <= 150_000
        assert len(harness.service.started) <= 15
        polite = await harness.client()
        assert (await polite.request(ECHO, b"y" * 20_000)).messages == [b"y" * 20_000]
        for client in clients:
            await client.send(settings({4: 10_000_000}))
        for client in clients:
            for number in range(1, 21, 2):
                answer = await client.answer(number)
                assert answer.messages == [b"x" * 10_000] or answer.reset == REFUSED_STREAM
        await nothing_is_held(harness)


async def test_a_handler_may_count_what_it_has_in_hand(autojump_clock: MockClock) -> None:
    async with open_harness(ServerConfig(max_unsent_bytes=1000)) as harness:
        service = harness.service
        client = await harness.client()
        await client.send(client.call(1, PARK, b"x"))
        await wait_all_tasks_blocked()
        (link,) = harness.server._links
        (call,) = link._calls.values()
        call.hold(5000)
        assert call.peer.allowance(0, 0) == 0
        await client.send(client.call(3, ECHO, b"waits"))
        await wait_all_tasks_blocked()
        assert b"waits" not in service.started
        service.release.set()
        assert (await client.answer(1)).messages == [b"x"]
        assert (await client.answer(3)).messages == [b"waits"]
        await nothing_is_held(harness)


async def test_what_calls_held_is_given_back_however_they_end(autojump_clock: MockClock) -> None:
    async with open_harness() as harness:
        client = await harness.client({4: 0}, polite=False)
        await client.send(
            client.call(1, PARK, b"x" * 100, ("grpc-timeout", "1S")),
            client.call(3, PARK, b"x" * 100),
            client.call(5, ECHO, b"x" * 100),
            client.call(7, ECHO, b"x" * 100),
            client.call(9, PARK, b"x" * 100),
        )
        await wait_all_tasks_blocked()
        assert harness.server.memory.held == 500
        await client.send(reset(3), reset(5))
        await wait_all_tasks_blocked()
        assert harness.server.memory.held == 300
        await trio.sleep(1.5)
        assert harness.server.memory.held == 200
        await client.stream.aclose()
        await nothing_is_held(harness)


async def test_of_many_large_requests_at_once_the_oldest_is_done_first(
    autojump_clock: MockClock,
) -> None:
    config = ServerConfig(max_buffered_bytes=24_000_000)
    message = b"x" * 5_000_000

    async def call(channel: Channel) -> None:
        assert await channel.unary(method, message) == message

    method = Method(ECHO, bytes, bytes)
    async with open_harness(config) as harness:

        async def connect() -> trio.abc.Stream:
            return harness.stream()

        async with (
            open_channel(connect, authority="test") as channel,
            trio.open_nursery() as nursery,
        ):
            # Together they have more than there is room for.
            for _ in range(12):
                nursery.start_soon(call, channel)
        assert len(harness.service.started) == 12
        await nothing_is_held(harness)
