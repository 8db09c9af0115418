"""Section 14.1: connection, settings, flow control."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hyperframe.frame import DataFrame, HeadersFrame, SettingsFrame, WindowUpdateFrame

from tests.conformance.frames import Wire, message
from tests.conformance.probes.base import EMPTY, INFO, OK, RESERVE, new_queue, probe, works
from tests.conformance.wire import batch, new_job, pb, reserve_request, route

if TYPE_CHECKING:
    from tests.conformance.servers import Server


@probe()
def the_server_speaks_first_with_its_settings(server: Server) -> None:
    with Wire(server.address, preface=False) as wire:
        wire.until(lambda: wire.settings is not None)
        first = wire.frames[0]
        assert isinstance(first, SettingsFrame)
        assert first.stream_id == 0
        assert first.settings.get(SettingsFrame.ENABLE_PUSH, 0) == 0
        assert first.settings.get(SettingsFrame.MAX_FRAME_SIZE, 16384) == 16384


@probe()
def the_client_s_settings_are_acknowledged(server: Server) -> None:
    with Wire(server.address) as wire:
        wire.until(lambda: wire.settings_acks == 1)
        for _ in range(50):
            wire.send(SettingsFrame(0))
        wire.until(lambda: wire.settings_acks == 51)


@probe()
def the_client_s_window_is_honoured_to_the_byte(server: Server) -> None:
    queue = new_queue()
    for _ in range(4):
        with Wire(server.address) as wire:
            job = new_job(queue, payload=pb.Payload(data=bytes(30_000), encoding="raw"))
            body = message(batch(job).SerializeToString())
            assert wire.call(route("EnqueueBatch"), body).status == OK
    with Wire(server.address) as wire:
        works(wire)
        used = sum(len(f.data) for f in wire.frames if isinstance(f, DataFrame))
        stream = wire.start(
            RESERVE, message(reserve_request(queue, max_jobs=4).SerializeToString())
        )
        wire.until(lambda: len(wire.reply(stream).data) >= 65535 - used)
        wire.listen(0.2)
        assert len(wire.reply(stream).data) == 65535 - used
        # One byte more for both windows is one byte more of data.
        wire.send(WindowUpdateFrame(0, used + 1), WindowUpdateFrame(stream, 1))
        wire.until(lambda: len(wire.reply(stream).data) == 65536)
        wire.send(WindowUpdateFrame(0, 1 << 20), WindowUpdateFrame(stream, 1 << 20))
        assert wire.answer(stream).status == OK
        assert max(wire.reply(stream).data_sizes) <= 16384


@probe()
def an_upload_larger_than_the_windows_gets_its_credit(server: Server) -> None:
    with Wire(server.address) as wire:
        wire.until(lambda: wire.settings is not None)
        wire.listen(0.1)
        assert wire.settings is not None
        initial = wire.settings.settings.get(SettingsFrame.INITIAL_WINDOW_SIZE, 65535)
        body = bytes(3_000_000)
        stream = wire.stream()
        headers = HeadersFrame(stream, wire.block(wire.request(INFO)), flags=["END_HEADERS"])
        wire.send(headers)
        # An unknown field of the request: read to the end, then ignored.
        field = b"\xc2\x3e" + bytes([0x80 | len(body) & 0x7F, 0x80 | len(body) >> 7 & 0x7F])
        field += bytes([0x80 | len(body) >> 14 & 0x7F, len(body) >> 21])
        data = message(field + body)

        def credit() -> int:
            windows = [65535, initial]
            for frame in wire.frames:
                if isinstance(frame, WindowUpdateFrame) and frame.stream_id in (0, stream):
                    windows[frame.stream_id != 0] += frame.window_increment
            return min(windows)

        sent = 0
        while sent < len(data):
            wire.until(lambda: credit() > sent)  # noqa: B023
            piece = data[sent : min(sent + 16384, credit())]
            sent += len(piece)
            flags = ["END_STREAM"] if sent == len(data) else []
            wire.send(DataFrame(stream, piece, flags=flags))
        assert wire.answer(stream).status == OK


@probe()
def an_http1_request_ends_the_connection(server: Server) -> None:
    with Wire(server.address, preface=False) as wire:
        wire.raw(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        wire.until_closed()


@probe()
def many_calls_in_one_write_are_all_answered(server: Server) -> None:
    with Wire(server.address) as wire:
        calls = [wire.frames_of_call(INFO, EMPTY) for _ in range(100)]
        wire.send(*[frame for call in calls for frame in call])
        assert [wire.answer(call[0].stream_id).status for call in calls] == [OK] * 100
