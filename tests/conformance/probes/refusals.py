"""Section 14.4: refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    HeadersFrame,
    RstStreamFrame,
    WindowUpdateFrame,
)

from tests.conformance.frames import Wire, message
from tests.conformance.probes.base import (
    EMPTY,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    INFO,
    INTERNAL,
    OK,
    OUT_OF_RANGE,
    PROTOCOL_ERROR,
    RESERVE,
    UNIMPLEMENTED,
    new_queue,
    probe,
    works,
)
from tests.conformance.wire import batch, new_job, reserve_request, route

if TYPE_CHECKING:
    from tests.conformance.servers import Server


@probe()
def an_error_is_one_header_block_with_http_status_200(server: Server) -> None:
    with Wire(server.address) as wire:
        reply = wire.call(RESERVE, EMPTY)
        (headers,) = map(dict, reply.headers)
        assert headers[":status"] == "200"
        assert headers["content-type"] == "application/grpc"
        assert headers["grpc-status"] == "3"
        assert headers["grpc-message"]
        assert reply.data == b""


@probe()
def unknown_methods_services_and_paths_are_unimplemented_without_message(server: Server) -> None:
    with Wire(server.address) as wire:
        for path in ("/sepp.v1.QueueService/X", "/sepp.v1.Other/Ack", "/", "/a/b/c"):
            reply = wire.call(path, EMPTY)
            assert (reply.http_status, reply.status) == ("200", UNIMPLEMENTED)
            assert not dict(reply.headers[-1]).get("grpc-message")


@probe()
def messages_are_percent_encoded(server: Server) -> None:
    body = message(reserve_request("a" * 509 + "ä% ").SerializeToString())
    with Wire(server.address) as wire:
        (headers,) = map(dict, wire.call(RESERVE, body).headers)
        text = headers["grpc-message"]
        assert text.isascii()
        assert " " not in text
        assert "%C3%A4%25%20" in text


@probe()
def method_content_type_te_and_authority_are_not_looked_at(server: Server) -> None:
    with Wire(server.address) as wire:
        for changes in (
            {"method": "PUT"},
            {"content_type": None},
            {"content_type": "application/json"},
            {"content_type": "application/grpc+proto"},
            {"te": None},
            {"authority": None},
        ):
            reply = wire.call(INFO, EMPTY, **changes)
            assert reply.status == OK, changes
            assert dict(reply.headers[0])["content-type"] == "application/grpc"


@probe()
def a_request_without_a_whole_message_is_internal(server: Server) -> None:
    with Wire(server.address) as wire:
        whole = EMPTY
        for body in (b"", whole[:3], message(b"abc")[:-1], whole + b"\0"):
            assert wire.call(INFO, body).status == INTERNAL, body
        stream = wire.stream()
        flags = ["END_HEADERS", "END_STREAM"]
        wire.send(HeadersFrame(stream, wire.block(wire.request(INFO)), flags=flags))
        assert wire.answer(stream).status == INTERNAL
        works(wire)


@probe()
def of_two_messages_the_first_is_answered(server: Server) -> None:
    with Wire(server.address) as wire:
        first = reserve_request(new_queue()).SerializeToString()
        assert wire.call(RESERVE, message(first) + EMPTY).status == OK


@probe()
def a_compressed_message_is_refused(server: Server) -> None:
    with Wire(server.address) as wire:
        assert wire.call(INFO, message(b"", 1)).status == INTERNAL
        assert wire.call(INFO, message(b"", 2)).status == INTERNAL
        for encoding in ("gzip", "snappy"):
            for flag in (0, 1):
                reply = wire.call(INFO, message(b"", flag), grpc_encoding=encoding)
                assert reply.status == UNIMPLEMENTED
                assert dict(reply.headers[-1])["grpc-accept-encoding"] == "identity"
        assert wire.call(INFO, EMPTY, grpc_encoding="identity").status == OK


@probe()
def an_accepted_compression_is_not_used(server: Server) -> None:
    with Wire(server.address) as wire:
        reply = wire.call(INFO, EMPTY, grpc_accept_encoding="gzip, identity")
        assert (reply.status, reply.data[0]) == (OK, 0)


@probe()
def an_oversized_message_is_refused_by_its_prefix_alone(server: Server) -> None:
    with Wire(server.address) as wire:
        stream = wire.stream()
        wire.send(
            HeadersFrame(stream, wire.block(wire.request(INFO)), flags=["END_HEADERS"]),
            DataFrame(stream, b"\0" + (16_777_217).to_bytes(4, "big")),
        )
        assert wire.answer(stream).status == OUT_OF_RANGE
        # What is still under way is ignored.
        wire.send(DataFrame(stream, bytes(1000), flags=["END_STREAM"]))
        works(wire)


@probe()
def one_byte_frames_padding_and_request_trailers_are_fine(server: Server) -> None:
    with Wire(server.address) as wire:
        queue = new_queue()
        body = message(batch(new_job(queue)).SerializeToString())
        stream = wire.stream()
        wire.send(
            HeadersFrame(
                stream,
                wire.block(wire.request(route("EnqueueBatch"))),
                flags=["END_HEADERS", "PADDED", "PRIORITY"],
                pad_length=7,
                depends_on=0,
                stream_weight=15,
            ),
            *[DataFrame(stream, body[n : n + 1]) for n in range(len(body))],
            DataFrame(stream, b"", flags=["PADDED"], pad_length=9),
            HeadersFrame(
                stream, wire.block([("x-trailer", "1")]), flags=["END_HEADERS", "END_STREAM"]
            ),
        )
        assert wire.answer(stream).status == OK


@probe()
def a_header_block_may_come_in_continuations(server: Server) -> None:
    with Wire(server.address) as wire:
        stream = wire.stream()
        block = wire.block([*wire.request(INFO), ("x-long", "y" * 2000)])
        wire.send(
            HeadersFrame(stream, block[:100]),
            ContinuationFrame(stream, block[100:200]),
            ContinuationFrame(stream, block[200:], flags=["END_HEADERS"]),
            DataFrame(stream, EMPTY, flags=["END_STREAM"]),
        )
        assert wire.answer(stream).status == OK


@probe()
def too_large_a_header_list_is_refused_and_the_connection_stays(server: Server) -> None:
    with Wire(server.address) as wire:
        long = "0" * 8000  # 5 bits each: the block still fits in one frame
        reply = wire.call(INFO, EMPTY, x_a=long, x_b=long, x_c=long)
        assert reply.http_status == "431"
        assert reply.status is None
        works(wire)


@probe()
def endless_continuations_end_the_connection(server: Server) -> None:
    with Wire(server.address) as wire:
        stream = wire.stream()
        block = wire.block([*wire.request(INFO), *[(f"x-{n}", "y" * 1000) for n in range(400)]])
        pieces = [block[n : n + 500] for n in range(0, len(block), 500)]
        wire.send(
            HeadersFrame(stream, pieces[0]), *[ContinuationFrame(stream, p) for p in pieces[1:]]
        )
        wire.until_closed()
        assert [f.error_code for f in wire.goaways] == [ENHANCE_YOUR_CALM]


@probe()
def a_request_without_scheme_is_a_stream_error(server: Server) -> None:
    with Wire(server.address) as wire:
        reply = wire.call(INFO, EMPTY, scheme=None)
        assert reply.reset == PROTOCOL_ERROR
        works(wire)


@probe()
def broken_frames_end_the_connection_with_their_error(server: Server) -> None:
    def too_long(wire: Wire) -> None:
        wire.raw(b"\x00\x40\x01\x00\x00\x00\x00\x00\x01" + bytes(16385))

    def data_on_an_idle_stream(wire: Wire) -> None:
        wire.send(DataFrame(9, b"x"))

    def reset_of_an_idle_stream(wire: Wire) -> None:
        wire.send(RstStreamFrame(9, 8))

    def an_even_stream(wire: Wire) -> None:
        wire.send(*wire.frames_of_call(INFO, EMPTY, stream=2))

    def a_decreasing_stream(wire: Wire) -> None:
        wire.send(*wire.frames_of_call(INFO, EMPTY, stream=9))
        wire.send(*wire.frames_of_call(INFO, EMPTY, stream=5))

    def an_undecodable_block(wire: Wire) -> None:
        wire.send(HeadersFrame(1, b"\xff\xff\xff\xff\xff\xff", flags=["END_HEADERS"]))

    def a_window_beyond_its_end(wire: Wire) -> None:
        wire.send(WindowUpdateFrame(0, 2**31 - 1), WindowUpdateFrame(0, 2**31 - 1))

    cases = [
        (too_long, {FRAME_SIZE_ERROR}),
        (data_on_an_idle_stream, {PROTOCOL_ERROR}),
        (reset_of_an_idle_stream, {PROTOCOL_ERROR}),
        (an_even_stream, {PROTOCOL_ERROR}),
        (a_decreasing_stream, {PROTOCOL_ERROR}),
        # RFC 9113 calls it COMPRESSION_ERROR; the real server says PROTOCOL_ERROR.
        (an_undecodable_block, {PROTOCOL_ERROR, 9}),
        (a_window_beyond_its_end, {FLOW_CONTROL_ERROR}),
    ]
    for offence, errors in cases:
        with Wire(server.address) as wire:
            works(wire) if offence is a_window_beyond_its_end else wire.until(
                lambda: wire.settings is not None
            )
            offence(wire)
            wire.until_closed()
            codes = {frame.error_code for frame in wire.goaways}
            assert codes, offence.__name__
            assert codes <= errors, (offence.__name__, codes)


@probe()
def unknown_frames_and_late_resets_are_ignored(server: Server) -> None:
    with Wire(server.address) as wire:
        stream = wire.start(INFO, EMPTY)
        wire.answer(stream)
        wire.send(RstStreamFrame(stream, 8))
        wire.raw(b"\x00\x00\x03\xbb\x00\x00\x00\x00\x00abc")
        works(wire)


@probe()
def a_call_runs_only_when_its_request_has_ended(server: Server) -> None:
    with Wire(server.address) as wire:
        stream = wire.stream()
        wire.send(
            HeadersFrame(stream, wire.block(wire.request(INFO)), flags=["END_HEADERS"]),
            DataFrame(stream, EMPTY),
        )
        wire.listen(0.3)
        assert not wire.reply(stream).headers
        wire.send(DataFrame(stream, b"", flags=["END_STREAM"]))
        assert wire.answer(stream).status == OK
