"""Section 14.2, 14.3: a successful response."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hyperframe.frame import HeadersFrame, SettingsFrame

from tests.conformance.frames import Wire, message
from tests.conformance.probes.base import EMPTY, INFO, OK, RESERVE, new_queue, parked, probe
from tests.conformance.wire import reserve_request

if TYPE_CHECKING:
    from tests.conformance.servers import Server


@probe()
def a_response_is_headers_one_message_and_trailers(server: Server) -> None:
    with Wire(server.address) as wire:
        stream = wire.start(INFO, EMPTY)
        reply = wire.answer(stream)
        head, trailers = map(dict, reply.headers)
        assert head[":status"] == "200"
        assert head["content-type"] == "application/grpc"
        assert trailers == {"grpc-status": "0"}
        assert reply.data[0] == 0
        assert int.from_bytes(reply.data[1:5], "big") == len(reply.data) - 5
        mine = [f for f in wire.frames if f.stream_id == stream]
        assert ["END_STREAM" in f.flags for f in mine] == [False] * (len(mine) - 1) + [True]


@probe()
def an_empty_message_is_five_bytes(server: Server) -> None:
    with Wire(server.address) as wire:
        reply = wire.call(RESERVE, message(reserve_request(new_queue()).SerializeToString()))
        assert (reply.status, reply.data) == (OK, bytes(5))


@probe()
def without_a_header_table_every_response_block_stands_alone(server: Server) -> None:
    with Wire(server.address, settings={SettingsFrame.HEADER_TABLE_SIZE: 0}) as wire:
        for _ in range(3):
            reply = wire.call(INFO, EMPTY)
            assert dict(reply.headers[0])[":status"] == "200"
            assert reply.status == OK
        blocks = [f.data for f in wire.frames if isinstance(f, HeadersFrame)]
        # No size update after the first block, nothing indexed beyond the static table.
        assert blocks[2:4] == blocks[4:6] or blocks[3] == blocks[5]


@probe()
def a_waiting_reserve_sends_nothing_before_its_answer(server: Server) -> None:
    with Wire(server.address) as wire:
        stream = wire.start(RESERVE, parked(0.5))
        wire.listen(0.25)
        assert not wire.reply(stream).headers
        assert wire.answer(stream).status == OK
