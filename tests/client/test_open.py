"""open_client: what it takes, refuses and warns of; how its block ends."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from sepp_trio import errors
from sepp_trio.client import SeppClient, open_client
from sepp_trio.types import EnqueueRequest, ReserveOptions
from tests.client.fake import FakeServer, after, never, stored
from tests.client.test_leases import JOB, extended


async def enter(address: Any = "localhost:1", **options: Any) -> None:
    async with open_client(address, **options):
        raise AssertionError("connected")


@pytest.mark.parametrize("key", ["", "a b", "a\nb", "a\rb", "schlüssel", "\x7f", "a\0"])
async def test_a_key_that_no_header_can_carry_is_found_locally(key: str) -> None:
    with pytest.raises(errors.InvalidApiKeyError, match="api_key must") as caught:
        await enter(api_key=key)
    if key:
        assert key not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"address": "localhost"}, ValueError, "the port is missing"),
        ({"address": 5}, TypeError, "address must be a string or a callable, not int"),
        ({"api_key": b"key"}, TypeError, "api_key must be a string, not bytes"),
        ({"tls": "yes"}, TypeError, "tls must be a bool or an SSLContext"),
        ({"address": "https://localhost:1", "tls": False}, ValueError, "https:// means TLS"),
        ({"retry_policy": 5}, TypeError, "retry_policy must be a RetryPolicy, not int"),
        ({"rpc_timeout": 0}, ValueError, "rpc_timeout must be more than 0 s, not 0"),
        ({"rpc_timeout": None}, TypeError, "rpc_timeout must be seconds or a timedelta"),
        ({"connect_timeout": -1}, ValueError, "connect_timeout must be more than 0 s"),
        ({"keepalive_interval": 0}, ValueError, "keepalive_interval must be more than 0 s"),
        ({"keepalive_timeout": 0}, ValueError, "keepalive_timeout must be more than 0 s"),
        (
            {"max_receive_message_bytes": 0},
            ValueError,
            "max_receive_message_bytes must be between 1",
        ),
        ({"max_receive_message_bytes": 1.5}, TypeError, "max_receive_message_bytes must be an int"),
    ],
)
async def test_wrong_options_are_refused_before_anything_is_dialled(
    options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        await enter(**options)


@pytest.mark.parametrize(
    ("address", "options", "warned"),
    [
        ("10.255.255.1:1", {"api_key": "s3cret"}, True),
        ("http://queue.invalid:1", {"api_key": "s3cret"}, True),
        ("https://queue.invalid:1", {"api_key": "s3cret"}, False),
        ("127.0.0.1:1", {"api_key": "s3cret"}, False),
        ("localhost:1", {"api_key": "s3cret"}, False),
        ("unix:/no/such/socket", {"api_key": "s3cret"}, False),
        ("10.255.255.1:1", {}, False),
    ],
)
async def test_a_key_in_plain_text_is_warned_of_once(
    address: str,
    options: dict[str, Any],
    warned: bool,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise OSError("not dialled in this test")

    monkeypatch.setattr(trio, "open_tcp_stream", refuse)
    with caplog.at_level(logging.WARNING), pytest.raises(errors.ConnectError):
        await enter(address, **options)
    warnings = [record.getMessage() for record in caplog.records if "API key" in record.message]
    assert len(warnings) == warned
    assert "s3cret" not in caplog.text


async def test_it_is_connected_and_asks_nothing(server: FakeServer) -> None:
    async with server.client() as client:
        assert client.statistics().state == "ready"
        assert repr(client) == "<SeppClient the given stream>"
    assert server.calls == []
    assert server.dials == 1
    assert client.statistics().state == "closed"
    assert repr(client) == "<SeppClient the given stream (closed)>"


async def test_what_cannot_be_dialled_is_a_connect_error(nursery: trio.Nursery) -> None:
    async def connect() -> trio.abc.Stream:
        raise OSError("no route")

    with pytest.raises(errors.ConnectError) as caught:
        await enter(connect)
    assert caught.value.address == "the given stream"
    assert "no route" in caught.value.reason


async def test_an_exception_of_the_block_comes_out_as_it_is(server: FakeServer) -> None:
    error = KeyError("mine")

    async def fail() -> None:
        async with server.client():
            raise error

    with pytest.raises(KeyError) as caught:
        await fail()
    assert caught.value is error
    assert caught.value.__context__ is None

    async def fail_in_call() -> None:
        async with server.client() as client:
            await client.ack(JOB)

    with pytest.raises(errors.UnexpectedStatusError):
        await fail_in_call()


async def test_a_cancel_of_the_block_stays_with_its_scope(
    autojump_clock: MockClock, server: FakeServer
) -> None:
    with trio.move_on_after(5) as scope:
        async with server.client():
            await trio.sleep_forever()
    assert scope.cancelled_caught
    with trio.move_on_after(5) as outer:
        async with server.client():
            with trio.move_on_after(1) as inner:
                await trio.sleep_forever()
            assert inner.cancelled_caught
    assert not outer.cancelled_caught


async def test_a_block_that_is_cancelled_can_still_clean_up(
    autojump_clock: MockClock, server: FakeServer
) -> None:
    server.script("Ack", after(0.3, JOB))
    server.script("EnqueueBatch", after(1, stored("a")))
    done = False
    with trio.move_on_after(5):
        async with server.client() as client:
            try:
                await trio.sleep_forever()
            finally:
                with trio.move_on_after(2, shield=True):
                    await client.enqueue(EnqueueRequest("q", "t"))
                    done = True
    assert done


async def test_a_lease_is_kept_while_a_cancelled_block_cleans_up(
    autojump_clock: MockClock, server: FakeServer
) -> None:
    server.script("Extend", extended)
    with trio.move_on_after(5):
        async with server.client() as client:
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    async with client.hold(JOB):
                        await trio.sleep(50)
    assert trio.current_time() == 55
    assert len(server.requests("Extend")) > 3


async def test_several_clients_end_in_any_order(server: FakeServer) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(server.client()) for _ in range(3)]
        for client in clients:
            assert (await client.get_server_info()).server_version


async def test_a_cancel_while_connecting_leaves_nothing(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    ours, theirs = trio.testing.memory_stream_pair()

    async def connect() -> trio.abc.Stream:
        return ours

    with trio.move_on_after(1) as scope:
        await enter(connect)
    assert scope.cancelled_caught
    assert trio.current_time() == 1
    with pytest.raises(trio.ClosedResourceError):
        await ours.send_all(b"x")
    await theirs.aclose()


# ---- after the block ----


CALLS = {
    "enqueue": lambda client: client.enqueue(EnqueueRequest("q", "t")),
    "enqueue_keyed": lambda client: client.enqueue(EnqueueRequest("q", "t", idempotency_key="k")),
    "enqueue_atomic": lambda client: client.enqueue_atomic([EnqueueRequest("q", "t")]),
    "reserve": lambda client: client.reserve(ReserveOptions(["q"], 30)),
    "ack": lambda client: client.ack(JOB),
    "nack": lambda client: client.nack(JOB),
    "extend": lambda client: client.extend(JOB, 1),
    "get_server_info": lambda client: client.get_server_info(),
    "drain_dead_letters": lambda client: client.drain_dead_letters(),
}


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_after_the_block_says_so(server: FakeServer, name: str) -> None:
    async with server.client() as client:
        pass
    with pytest.raises(errors.ClientClosedError, match="open_client block of the given stream"):
        await CALLS[name](client)


async def test_hold_after_the_block_says_so(server: FakeServer) -> None:
    async with server.client() as client:
        pass
    with pytest.raises(errors.ClientClosedError):
        client.hold(JOB)


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_that_is_open_when_the_block_ends_says_so(
    autojump_clock: MockClock, server: FakeServer, name: str
) -> None:
    for rpc in ("EnqueueBatch", "EnqueueAtomic", "Reserve", "Ack", "Nack", "Extend"):
        server.script(rpc, never)
    server.script("GetServerInfo", never)
    server.script("DrainDeadLetters", never)

    async def call(client: SeppClient) -> None:
        with pytest.raises(errors.ClientClosedError):
            await CALLS[name](client)

    async with trio.open_nursery() as nursery, server.client() as client:
        nursery.start_soon(call, client)
        await trio.testing.wait_all_tasks_blocked()
    assert trio.current_time() == 0
