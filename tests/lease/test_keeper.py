"""Many leases under one keeper: beats are spread, clocks looked after, nothing is left over."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio
from grpclib.const import Status

from sepp_trio import ReserveOptions, SeppClient
from tests.worker.helpers import Sepp


async def test_first_beats_of_leases_granted_together_are_spread(
    sepp: Sepp, client: SeppClient
) -> None:
    keeper = client._keeper
    for number in range(1000):
        lease = keeper.open(f"job-{number}", 1, asked=30)
        lease.end_at(30, 30, own=True)
        keeper.start_beats(lease, 0)
        sepp.leases[lease.job_id] = None  # type: ignore[assignment]

    async def granted(request: Any) -> Any:
        from sepp_trio.wire import records

        return records.ExtendResponse(request.job_id, sepp.expiry(30))

    sepp.script("Extend", granted)
    await trio.sleep(10.1)
    seen = [call.at for call in sepp.calls if call.rpc == "Extend"]
    assert len(seen) >= 1000
    per_half_second = Counter(int(at * 2) for at in seen)
    assert max(per_half_second.values()) < 2 * 1000 / 20
    assert len(keeper) == 1000
    assert keeper.beats.sent == len(seen)


async def test_the_servers_time_is_asked_for_again_while_leases_are_held(
    sepp: Sepp, client: SeppClient
) -> None:
    sepp.put("t")
    [job] = await client.reserve(ReserveOptions(["emails"], 30))
    asked = len(sepp.requests("GetServerInfo"))
    async with client.hold(job):
        await trio.sleep(300)
    assert 4 <= len(sepp.requests("GetServerInfo")) - asked <= 6


@pytest.mark.parametrize("jump", [3600.0, -3600.0, 12.0, -12.0])
async def test_after_the_servers_clock_was_set_beats_and_deadline_go_on_as_before(
    sepp: Sepp, client: SeppClient, jump: float
) -> None:
    sepp.put("t")
    [job] = await client.reserve(ReserveOptions(["emails"], 30))
    async with client.hold(job) as lease:
        await trio.sleep(5)
        sepp.ahead += jump
        sepp.fail("GetServerInfo", Status.UNAVAILABLE)
        for second in range(100):
            await trio.sleep(1)
            truth = sepp.leases[job.id].expires - trio.current_time()
            if second != 5:  # between the odd answer and the server's time
                assert truth - 0.1 < lease.remaining() <= truth + 0.001
    gaps = [b - a for a, b in zip(sepp.extend_times[1:], sepp.extend_times[2:], strict=False)]
    assert all(3 < gap < 10.2 for gap in gaps)


async def test_a_queue_that_grants_less_is_no_reason_to_ask_again_and_again(
    sepp: Sepp, client: SeppClient
) -> None:
    sepp.longest = 7.5
    sepp.put("t")
    [job] = await client.reserve(ReserveOptions(["emails"], 30))
    assert job.lease_deadline is not None
    async with client.hold(job) as lease:
        await trio.sleep(50)
        assert lease.remaining() <= 7.5
    assert len(sepp.requests("GetServerInfo")) <= 4
    gaps = [b - a for a, b in zip(sepp.extend_times, sepp.extend_times[1:], strict=False)]
    assert all(2.3 < gap < 2.7 for gap in gaps)


async def test_failed_beats_are_logged_once_a_second_at_most(
    sepp: Sepp, client: SeppClient, caplog: pytest.LogCaptureFixture
) -> None:
    sepp.put(*["t"] * 50)
    jobs = await client.reserve(ReserveOptions(["emails"], 30, max_jobs=50))
    sepp.fail("Extend", *[Status.UNAVAILABLE] * 500)

    async def hold(job: Any) -> None:
        async with client.hold(job):
            await trio.sleep(12)

    async with trio.open_nursery() as nursery:
        for job in jobs:
            nursery.start_soon(hold, job)
    lines = [r.getMessage() for r in caplog.records if r.name == "sepp_trio.lease"]
    assert 5 <= len(lines) <= 13
    assert "its lease could not be extended" in lines[0]
    assert len(client._keeper) == 0
