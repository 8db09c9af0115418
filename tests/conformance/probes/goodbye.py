"""Section 14.6: pings and goodbye."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hyperframe.frame import DataFrame, GoAwayFrame, HeadersFrame, PingFrame

from tests.conformance.frames import Wire, message
from tests.conformance.probes.base import EMPTY, INFO, OK, RESERVE, parked, probe, works
from tests.conformance.wire import batch, new_job, pb, route

if TYPE_CHECKING:
    from tests.conformance.servers import Server


@probe()
def pings_are_answered_in_order(server: Server) -> None:
    with Wire(server.address) as wire:
        data = [n.to_bytes(8, "big") for n in range(2000)]
        for start in range(0, 2000, 100):
            wire.send(*[PingFrame(0, piece) for piece in data[start : start + 100]])
        wire.until(lambda: len(wire.pongs) == 2000)
        assert wire.pongs == data
        assert not wire.goaways


@probe()
def a_client_s_goaway_lets_open_calls_end_and_closes(server: Server) -> None:
    with Wire(server.address) as wire:
        stream = wire.start(RESERVE, parked(0.4))
        wire.listen(0.1)
        wire.send(GoAwayFrame(0, 0, 0))
        assert wire.answer(stream).status == OK
        wire.until_closed()


@probe(own_server=True)
def sigterm_says_goodbye_in_two_steps(server: Server) -> None:
    with Wire(server.address) as wire:
        works(wire)
        wire.answers_pings = False
        waiting = wire.start(RESERVE, parked())
        wire.listen(0.3)
        pings_before = len(wire.pings)
        server.terminate()
        # First: no more please, but whatever is on its way is served.
        wire.until(lambda: len(wire.goaways) == 1 and len(wire.pings) > pings_before)
        first = wire.goaways[0]
        assert (first.last_stream_id, first.error_code) == (2**31 - 1, 0)
        assert wire.answer(waiting).status == OK
        assert wire.call(INFO, EMPTY).status == OK
        crossing = wire.start(RESERVE, parked())
        started = time.monotonic()
        reply = wire.answer(crossing)
        # A reserve in the drain looks once and does not wait.
        assert (reply.status, reply.data) == (OK, bytes(5))
        assert time.monotonic() - started < 5.0
        assert len(wire.goaways) == 1
        # Then: the last stream that counts, and the end.
        wire.pong(wire.pings[-1])
        wire.until(lambda: len(wire.goaways) == 2)
        second = wire.goaways[1]
        assert (second.last_stream_id, second.error_code) == (crossing, 0)
        wire.until_closed()
    assert server.wait() == 0


@probe(own_server=True)
def sigterm_waits_for_a_request_whose_body_is_still_coming(server: Server) -> None:
    with Wire(server.address) as wire:
        works(wire)
        stream = wire.stream()
        body = message(batch(new_job("q")).SerializeToString())
        wire.send(
            HeadersFrame(
                stream, wire.block(wire.request(route("EnqueueBatch"))), flags=["END_HEADERS"]
            ),
            DataFrame(stream, body[:7]),
        )
        wire.listen(0.2)
        server.terminate()
        wire.until(lambda: len(wire.goaways) == 2)
        assert wire.goaways[1].last_stream_id == stream
        wire.send(DataFrame(stream, body[7:], flags=["END_STREAM"]))
        reply = wire.answer(stream)
        assert reply.status == OK
        (result,) = pb.EnqueueBatchResponse.FromString(reply.data[5:]).results
        assert result.success.job_id
        wire.until_closed()
    assert server.wait() == 0
