"""Opening, serving and closing: sockets, TLS, drains, and errors that come out plainly."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked

from sepp_trio.broker import ApiKey, BrokerConfig, ListenConfig, open_broker
from sepp_trio.client import SeppClient, open_client
from sepp_trio.errors import BrokerError, ConfigError, ConnectError, StoreError
from sepp_trio.transport import Channel, open_channel, tcp_connector
from sepp_trio.transport.server import ServerConfig
from sepp_trio.types import EnqueueRequest, ReserveOptions

from .calls import channel_to, reserve


async def round_trip(client: SeppClient) -> None:
    """One job from enqueue to ack."""
    ack = await client.enqueue(EnqueueRequest("q", "t"))
    (job,) = await client.reserve(ReserveOptions(["q"], 30, wait_timeout=5))
    assert job.id == ack.job_id
    await client.ack(job)


# ---- In memory, on virtual time ----


async def test_a_client_in_memory_needs_no_socket(autojump_clock: MockClock) -> None:
    async with open_broker() as broker, broker.open_client() as client:
        await round_trip(client)


async def test_two_brokers_in_memory_share_nothing(autojump_clock: MockClock) -> None:
    async with open_broker() as one, open_broker() as other, one.open_client() as client:
        await client.enqueue(EnqueueRequest("q", "t"))
        assert one.statistics().queues == {"q": 1}
        assert other.statistics().queues == {}


async def test_a_file_works_on_a_clock_that_leaps(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Trial 69: 20 jobs of one second each under leases of 30 s, none of which ends."""
    path = tmp_path / "jobs.db"
    async with open_broker(path) as broker, broker.open_client() as client:
        for _ in range(20):
            await client.enqueue(EnqueueRequest("q", "t"))
        for _ in range(20):
            (job,) = await client.reserve(ReserveOptions(["q"], 30, wait_timeout=5))
            await trio.sleep(1)
            assert job.attempt == 1
            await client.ack(job)
    async with open_broker(str(path)) as broker:
        assert broker.statistics().queues == {}


async def test_an_exception_of_the_block_comes_out_as_it_is(autojump_clock: MockClock) -> None:
    with pytest.raises(KeyError) as caught:
        async with open_broker() as broker, broker.open_client():
            raise KeyError("mine")
    assert caught.value.args == ("mine",)


async def test_a_cancelled_block_ends_at_once(autojump_clock: MockClock) -> None:
    start = trio.current_time()
    with trio.move_on_after(5) as scope:
        async with open_broker() as broker, broker.open_client():
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert trio.current_time() - start < 7


async def test_a_fault_in_the_committer_ends_the_block(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trial 69: a server that has crashed does not let its users wait for ever."""

    def crash(_: object) -> None:
        raise ZeroDivisionError

    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        async with open_broker() as broker, broker.open_client() as client:
            monkeypatch.setattr(broker._committer, "_finish", crash)
            await client.enqueue(EnqueueRequest("q", "t"))


async def test_a_closed_broker_takes_no_clients(autojump_clock: MockClock) -> None:
    async with open_broker() as broker:
        pass
    with pytest.raises(ConnectError, match="closed"):
        async with broker.open_client():
            pass  # pragma: no cover


async def test_a_drain_answers_waiting_reserves_and_ends_the_connections(
    autojump_clock: MockClock,
) -> None:
    """Trial 4c."""
    async with open_broker() as broker, trio.open_nursery() as nursery:
        answers: list[Any] = []

        async def wait() -> None:
            async with channel_to(broker) as channel:
                answers.append(await reserve(channel, wait=200))
                answers.append(trio.current_time())

        nursery.start_soon(wait)
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        start = trio.current_time()
        broker.start_drain()
        await wait_all_tasks_blocked()
        assert answers == [[], start, [], start]


async def test_a_client_that_stays_is_not_waited_for_longer_than_allowed(
    autojump_clock: MockClock,
) -> None:
    config = BrokerConfig(transport=ServerConfig(drain_timeout=3))
    async with trio.open_nursery() as nursery:
        async with open_broker(config=config) as broker:
            silent, theirs = memory_stream_pair()
            broker._connections.start_soon(broker._server.serve_stream, theirs)  # type: ignore[union-attr]
            await trio.sleep(1)
            start = trio.current_time()
        assert trio.current_time() - start <= 5
        await silent.aclose()
        nursery.cancel_scope.cancel()


# ---- On sockets ----


async def test_a_broker_on_a_port_of_its_own_choice(tmp_path: Path) -> None:
    async with open_broker(tmp_path / "jobs.db") as broker, trio.open_nursery() as nursery:
        address: str = await nursery.start(broker.serve, "127.0.0.1:0")
        host, port = address.split(":")
        assert host == "127.0.0.1"
        assert int(port) > 0
        async with open_client(address) as client:
            await round_trip(client)
        broker.start_drain()


async def test_a_broker_at_localhost_can_be_reached_by_that_name() -> None:
    async with open_broker() as broker, trio.open_nursery() as nursery:
        address: str = await nursery.start(broker.serve, "localhost:0")
        async with open_client(address) as client:
            await round_trip(client)
        nursery.cancel_scope.cancel()


async def test_a_broker_serves_where_its_configuration_says() -> None:
    config = BrokerConfig(server=ListenConfig(listen_addr="[::1]:0"))
    async with open_broker(config=config) as broker, trio.open_nursery() as nursery:
        try:
            address: str = await nursery.start(broker.serve)
        except BrokerError:
            pytest.skip("no IPv6 here")
        assert address.startswith("[::1]:")
        async with open_client(address) as client:
            await round_trip(client)
        nursery.cancel_scope.cancel()


async def test_a_unix_socket_is_there_while_it_is_served(tmp_path: Path) -> None:
    path = tmp_path / "sepp.sock"
    async with open_broker() as broker:
        for _ in range(2):
            async with trio.open_nursery() as nursery:
                address: str = await nursery.start(broker.serve, f"unix:{path}")
                assert address == f"unix:{path}"
                async with open_client(address) as client:
                    await round_trip(client)
                nursery.cancel_scope.cancel()
            assert not path.exists()


async def test_the_socket_file_of_a_dead_server_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "sepp.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with open_broker() as broker, trio.open_nursery() as nursery:
        address: str = await nursery.start(broker.serve, f"unix:{path}")
        async with open_client(address) as client:
            await round_trip(client)
        nursery.cancel_scope.cancel()


async def test_a_socket_file_in_use_or_no_socket_is_left_alone(tmp_path: Path) -> None:
    path, file = tmp_path / "sepp.sock", tmp_path / "file"
    file.write_text("precious")
    with socket.socket(socket.AF_UNIX) as used:
        used.bind(str(path))
        used.listen()
        async with open_broker() as broker:
            with pytest.raises(BrokerError, match="another server listens there"):
                await broker.serve(f"unix:{path}")
            with pytest.raises(BrokerError, match="is no socket"):
                await broker.serve(f"unix:{file}")
            with pytest.raises(BrokerError, match="cannot listen on unix:/nowhere"):
                await broker.serve("unix:/nowhere/at/all")
    assert file.read_text() == "precious"
    assert path.is_socket()


async def test_a_port_in_use_is_told() -> None:
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        address = f"127.0.0.1:{used.getsockname()[1]}"
        async with open_broker() as broker:
            with pytest.raises(BrokerError) as caught:
                await broker.serve(address)
    assert str(caught.value) == f"cannot listen on {address}: the port is in use"


async def test_a_host_that_is_not_ours_is_told() -> None:
    async with open_broker() as broker:
        with pytest.raises(BrokerError, match=r"cannot listen on 192\.0\.2\.1:0: "):
            await broker.serve("192.0.2.1:0")
        with pytest.raises(BrokerError, match="the host is not known"):
            await broker.serve("no-such-host.invalid:0")


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":5", "::1:5", "host:x", "host:-1", "host:65536", "unix:"]
)
async def test_what_is_no_address_is_refused(address: str) -> None:
    async with open_broker() as broker:
        with pytest.raises(ValueError, match="address must be"):
            await broker.serve(address)


async def test_serving_ends_when_the_broker_has_drained() -> None:
    async with open_broker() as broker, trio.open_nursery() as nursery:
        address: str = await nursery.start(broker.serve, "127.0.0.1:0")

        async def wait(*, task_status: trio.TaskStatus[None]) -> None:
            async with channel_of(address) as channel:
                task_status.started()
                assert await reserve(channel, wait=100) == []

        with trio.fail_after(10):
            await nursery.start(wait)
            await until(lambda: broker.statistics().committer.parked == 1)
            broker.start_drain()
    with pytest.raises(OSError):
        await trio.open_tcp_stream("127.0.0.1", int(address.rpartition(":")[2]))


async def test_a_broker_that_closes_waits_for_whoever_serves_it() -> None:
    async with trio.open_nursery() as nursery, open_broker() as broker:
        address: str = await nursery.start(broker.serve, "127.0.0.1:0")

        async def client() -> None:
            async with channel_of(address) as channel:
                assert await reserve(channel, wait=100) == []

        nursery.start_soon(client)
        await until(lambda: broker.statistics().committer.parked == 1)


async def test_a_cancelled_block_ends_whoever_serves_it() -> None:
    async with trio.open_nursery() as nursery:
        with trio.fail_after(10), trio.CancelScope() as scope:
            async with open_broker() as broker:
                address: str = await nursery.start(broker.serve, "127.0.0.1:0")
                async with channel_of(address):
                    scope.cancel()
                    await trio.sleep_forever()


async def until(true: Callable[[], bool]) -> None:
    """Wait for something in another task that sends no word of it."""
    while not true():  # noqa: ASYNC110
        await trio.sleep(0.01)


def channel_of(address: str) -> AbstractAsyncContextManager[Channel]:
    host, _, port = address.rpartition(":")
    return open_channel(tcp_connector(host, int(port)), authority=address)


# ---- TLS ----


async def test_tls_with_the_files_of_the_configuration(tmp_path: Path) -> None:
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    server = ca.issue_cert("localhost")
    server.private_key_pem.write_to_path(tmp_path / "key.pem")
    chain = b"".join(pem.bytes() for pem in server.cert_chain_pems)
    (tmp_path / "cert.pem").write_bytes(chain)
    listen = ListenConfig(
        tls_cert_path=str(tmp_path / "cert.pem"), tls_key_path=str(tmp_path / "key.pem")
    )
    async with (
        open_broker(config=BrokerConfig(server=listen)) as broker,
        trio.open_nursery() as nursery,
    ):
        address: str = await nursery.start(broker.serve, "localhost:0")
        async with open_client(f"https://{address}", ca_certificate=tmp_path / "ca.pem") as client:
            await round_trip(client)
        with pytest.raises(ConnectError):
            async with open_client(address, connect_timeout=2):
                pass  # pragma: no cover
        nursery.cancel_scope.cancel()


async def test_tls_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    other = trustme.CA().issue_cert("localhost")
    (tmp_path / "cert.pem").write_bytes(other.cert_chain_pems[0].bytes())
    trustme.CA().issue_cert("localhost").private_key_pem.write_to_path(tmp_path / "key.pem")
    (tmp_path / "garbage").write_text("garbage")
    for cert, key, field in [
        ("missing", "key.pem", "server.tls_cert_path"),
        ("cert.pem", "missing", "server.tls_key_path"),
        ("garbage", "key.pem", "server.tls_cert_path"),
        ("cert.pem", "key.pem", "server.tls_cert_path"),
    ]:
        listen = ListenConfig(tls_cert_path=str(tmp_path / cert), tls_key_path=str(tmp_path / key))
        async with open_broker(config=BrokerConfig(server=listen)) as broker:
            with pytest.raises(ConfigError) as caught:
                await broker.serve("127.0.0.1:0")
        assert caught.value.field == field


async def test_keys_in_plain_text_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keyed = BrokerConfig(api_keys=(ApiKey("a", "k1"),))
    for address, warned in [(f"unix:{tmp_path / 's'}", False), ("127.0.0.1:0", True)]:
        async with open_broker(config=keyed) as broker, trio.open_nursery() as nursery:
            await nursery.start(broker.serve, address)
            assert ("plain text" in caplog.text) == warned
            nursery.cancel_scope.cancel()
    assert "k1" not in caplog.text


# ---- Files ----


async def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("something else")
    with pytest.raises(StoreError, match="no SQLite database"):
        async with open_broker(tmp_path / "other"):
            pass  # pragma: no cover


async def test_a_file_is_free_again_after_the_block(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    for _ in range(2):
        async with open_broker(path) as broker, broker.open_client() as client:
            await round_trip(client)
        assert os.listdir(tmp_path) == ["jobs.db"]
