"""Section 14.5: deadlines and resets."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hyperframe.frame import RstStreamFrame

from tests.conformance.frames import Wire
from tests.conformance.probes.base import (
    CANCELLED,
    ENHANCE_YOUR_CALM,
    OK,
    RESERVE,
    parked,
    probe,
    works,
)

if TYPE_CHECKING:
    from tests.conformance.servers import Server


@probe()
def a_deadline_ends_a_call_as_cancelled(server: Server) -> None:
    with Wire(server.address) as wire:
        for value, seconds in (("400m", 0.4), ("400000u", 0.4), ("1S", 1.0), ("99999999n", 0.1)):
            started = time.monotonic()
            reply = wire.call(RESERVE, parked(), grpc_timeout=value)
            assert reply.status == CANCELLED, value
            assert seconds - 0.02 < time.monotonic() - started < seconds + 5.0
        for value in ("0m", "1n"):
            assert wire.call(RESERVE, parked(), grpc_timeout=value).status == CANCELLED
        works(wire)


@probe()
def a_deadline_that_does_not_parse_is_none(server: Server) -> None:
    with Wire(server.address) as wire:
        for value in ("abc", "123456789m", "-1m", "1", "m", "1 m", "1x"):
            assert wire.call(RESERVE, parked(0.05), grpc_timeout=value).status == OK, value


@probe()
def a_reset_call_gets_no_answer_and_the_others_do(server: Server) -> None:
    with Wire(server.address) as wire:
        stream = wire.start(RESERVE, parked(3.0))
        other = wire.start(RESERVE, parked(3.0))
        wire.listen(0.1)
        wire.send(RstStreamFrame(stream, 8))
        assert wire.answer(other).status == OK
        wire.listen(0.2)
        assert not wire.reply(stream).headers


@probe()
def many_waiting_reserves_may_be_reset_at_once(server: Server) -> None:
    with Wire(server.address) as wire:
        streams = [wire.start(RESERVE, parked()) for _ in range(500)]
        wire.listen(0.5)
        wire.send(*[RstStreamFrame(stream, 8) for stream in streams])
        works(wire)
        wire.listen(0.2)
        assert not wire.goaways


@probe()
def twenty_calls_written_with_their_resets_are_tolerated_and_hundreds_are_not(
    server: Server,
) -> None:
    def write(wire: Wire, number: int) -> None:
        frames = []
        for _ in range(number):
            call = wire.frames_of_call(RESERVE, parked())
            frames += [*call, RstStreamFrame(call[0].stream_id, 8)]
        wire.send(*frames)

    with Wire(server.address) as wire:
        works(wire)
        write(wire, 20)
        works(wire)
        assert not wire.goaways
    with Wire(server.address) as wire:
        works(wire)
        write(wire, 500)
        wire.until_closed()
        assert [f.error_code for f in wire.goaways] == [ENHANCE_YOUR_CALM]
