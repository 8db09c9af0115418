"""The proxy between other peers: sockets, other clients, messages of many frames, goodbyes."""

from __future__ import annotations

import h2.config
import h2.connection
import h2.events
import pytest
import trio
import trio.testing

from sepp_trio import (
    ConnectError,
    EnqueueRequest,
    Payload,
    ReserveOptions,
    TransportError,
    open_client,
)
from sepp_trio.testing import (
    BlackHole,
    Delay,
    Fail,
    FaultPlan,
    open_fault_proxy,
    open_fragile_server,
)
from sepp_trio.transport import tcp_connector
from sepp_trio.transport._frames import CONTINUATION, END_HEADERS, HEADERS, PADDED, PRIORITY_FIELDS
from sepp_trio.transport._frames import frame as frame_bytes
from sepp_trio.transport._headers import encode_block
from tests.testing.helpers import faults

INFO = "/sepp.v1.QueueService/GetServerInfo"


async def test_large_messages_pass_whole_in_both_directions() -> None:
    async with faults() as world:
        payload = Payload(bytes(range(256)) * 3000, "bin")
        await world.client.enqueue(EnqueueRequest("q", "t", payload))
        [job] = await world.client.reserve(ReserveOptions(["q"], 30, wait_timeout=0))
        assert job.payload == payload


async def test_an_exception_of_the_block_comes_out_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError):
        async with faults():
            raise ZeroDivisionError


async def test_a_server_that_is_down_refuses_through_the_proxy_as_well() -> None:
    async with open_fragile_server() as server:
        server.broker = None
        async with open_fault_proxy(server.connect) as proxy:
            with pytest.raises(ConnectError, match="the server is down"):
                async with open_client(proxy.connect):
                    """Not entered."""
            ours, theirs = trio.testing.memory_stream_pair()
            await proxy.serve_stream(theirs)
            assert await ours.receive_some() == b""


async def test_a_client_that_leaves_in_a_black_hole_is_missed_only_afterwards() -> None:
    async with faults(BlackHole(1.0, 5.0)) as world:
        async with open_client(world.proxy.connect):
            await trio.sleep(2)
        assert len(world.proxy._connections) == 2
        await trio.sleep(5)
        assert len(world.proxy._connections) == 1


def headers(path: str) -> list[tuple[str, str]]:
    return [
        (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"),
        ("te", "trailers"), ("content-type", "application/grpc"),
    ]  # fmt: skip


async def test_a_client_that_uses_header_tables_may_lose_a_call_in_between() -> None:
    """Blocks that lean on one that was held up are understood."""
    plan = FaultPlan((Delay("GetServerInfo", 1, request=5.0),))
    async with open_fragile_server() as server, open_fault_proxy(server.connect, plan) as proxy:
        stream = await proxy.connect()
        connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        connection.initiate_connection()
        done: dict[int, float] = {}
        for number in (1, 3, 5):
            connection.send_headers(number, headers(INFO))
            connection.send_data(number, b"\0\0\0\0\0", end_stream=True)
        await stream.send_all(connection.data_to_send())
        while len(done) < 3:
            for event in connection.receive_data(bytes(await stream.receive_some())):
                if isinstance(event, h2.events.TrailersReceived):
                    assert (b"grpc-status", b"0") in event.headers
                    done[event.stream_id] = trio.current_time()
            await stream.send_all(connection.data_to_send())
        assert done == {3: 0, 5: 0, 1: 5}


async def test_header_blocks_in_many_frames_with_padding_are_put_together() -> None:
    async with open_fragile_server() as server, open_fault_proxy(server.connect) as proxy:
        stream = await proxy.connect()
        connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
        connection.initiate_connection()
        block = encode_block(headers(INFO))
        first = b"\x02" + bytes(5) + block[:10] + b"\0\0"
        data = connection.data_to_send()
        for piece in (
            data[:7],
            data[7:],
            frame_bytes(2, 0, 1, bytes(5)),  # a PRIORITY frame
            frame_bytes(HEADERS, PADDED | PRIORITY_FIELDS, 1, first),
            frame_bytes(CONTINUATION, 0, 1, block[10:20]),
            frame_bytes(CONTINUATION, END_HEADERS, 1, block[20:]),
            frame_bytes(0, PADDED | 1, 1, b"\x01" + bytes(5) + b"\0"),
        ):
            await stream.send_all(piece)
        # h2 does not know that this stream is open: look at the bytes.
        received = b""
        with trio.fail_after(5):
            while b"grpc-status" not in received:
                received += await stream.receive_some()


class Whole(trio.abc.Stream):
    """A stream that cannot be closed by half, and breaks at will."""

    def __init__(self, inner: trio.abc.Stream) -> None:
        self._inner = inner
        self.broken = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self.broken:
            raise trio.BrokenResourceError
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data = await self._inner.receive_some(max_bytes)
        if self.broken:
            raise trio.BrokenResourceError
        return data

    async def aclose(self) -> None:
        await self._inner.aclose()


@pytest.mark.parametrize("how", ["server broken", "client broken", "end"])
async def test_the_end_of_one_side_is_the_end_of_the_other(how: str) -> None:
    wholes: list[Whole] = []
    async with open_fragile_server() as server, trio.open_nursery() as nursery:

        async def dial() -> trio.abc.Stream:
            wholes.append(Whole(await server.connect()))
            return wholes[-1]

        async with open_fault_proxy(dial) as proxy:
            ours, theirs = trio.testing.memory_stream_pair()
            wholes.append(Whole(theirs))
            nursery.start_soon(proxy.serve_stream, wholes[0])
            connection = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
            connection.initiate_connection()
            await ours.send_all(connection.data_to_send())
            await trio.sleep(1)
            if how == "end":
                await ours.send_eof()
            else:
                wholes[1 if how == "server broken" else 0].broken = True
                connection.ping(bytes(8))
                await ours.send_all(connection.data_to_send())
            with trio.fail_after(5):
                while await ours.receive_some():
                    """What was said before the end."""
            await trio.sleep(1)
            assert not proxy._connections


def test_a_proxy_can_stand_before_a_socket() -> None:
    async def main() -> None:
        async with open_fragile_server() as server, trio.open_nursery() as nursery:
            assert server.broker is not None
            address = await nursery.start(server.broker.serve, "127.0.0.1:0")
            dial = tcp_connector("127.0.0.1", int(address.rpartition(":")[2]))
            async with open_fault_proxy(dial, FaultPlan((Fail("Ack"),))) as proxy:
                [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
                nursery.start_soon(trio.serve_listeners, proxy.serve_stream, [listener])
                port = listener.socket.getsockname()[1]
                async with open_client(f"127.0.0.1:{port}") as client:
                    await client.enqueue(EnqueueRequest("q", "t"))
                    [job] = await client.reserve(ReserveOptions(["q"], 30))
                    with pytest.raises(TransportError):
                        await client.ack(job)
                    await client.ack(job)
            nursery.cancel_scope.cancel()

    trio.run(main)  # on the real clock
