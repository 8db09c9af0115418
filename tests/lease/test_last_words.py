"""What may still be sent for a lease that is settled, lost or over: nothing."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import trio
from grpclib.const import Status

from sepp_trio import (
    AttemptMismatchError,
    Job,
    LeaseLostError,
    ReserveOptions,
    SeppClient,
    TransportError,
)
from sepp_trio.lease import HeldLease, Verdict, _settlement
from sepp_trio.testing import BlackHole, Delay, DropConnection, Fail
from sepp_trio.transport.server import GrpcServer, ServerConfig
from sepp_trio.wire import records
from tests.client.fake import JOB_ID, FakeServer, after
from tests.worker.bench import Bench
from tests.worker.helpers import until

BAD_WAY = (TransportError, LeaseLostError)


class OneAtATime(FakeServer):
    """A server that takes up one call at a time: the others wait in the client."""

    def __init__(self, nursery: trio.Nursery) -> None:
        super().__init__(nursery)
        self.grpc = GrpcServer(
            self.grpc._handlers, codec=self.grpc.codec, config=ServerConfig(max_calls=1)
        )

    async def extend(self, request: records.ExtendRequest) -> records.ExtendResponse:
        """A lease of ten seconds."""
        seconds = int(trio.current_time()) + 1_767_225_600 + 10
        return records.ExtendResponse((seconds, 0))


def take_the_stream(client: SeppClient) -> None:
    """Make a call that the server answers after four seconds."""
    method = client._methods.get_server_info
    request = records.GetServerInfoRequest()
    client._channel.start_unary(method, request, lambda *_: None, timeout=None)


def take_beating(client: SeppClient, seconds: float) -> HeldLease:
    keeper = client._keeper
    lease = keeper.open(JOB_ID, 1, asked=seconds)
    now = trio.current_time()
    lease.end_at(now + seconds, seconds, own=True)
    keeper.start_beats(lease, now)
    return lease


# ---- beats that have not left yet ----


@pytest.mark.parametrize("ends", ["acked", "nacked", "let go", "lost", "beats end"])
async def test_a_beat_that_has_not_left_is_withdrawn_with_its_lease(
    nursery: trio.Nursery, ends: str
) -> None:
    server = OneAtATime(nursery)
    server.script("Extend", server.extend)
    server.script("Ack", after(4, records.AckResponse()))
    server.script("Nack", after(4, records.NackResponse()))
    server.script("GetServerInfo", after(4, Status.UNAVAILABLE))
    async with server.client() as client:
        methods = client._keeper.methods
        lease = take_beating(client, 10)
        settled: list[Verdict] = []

        def done(_: object, verdict: Verdict, *more: object) -> None:
            settled.append(verdict)

        await trio.sleep(0.5)
        if ends == "acked":
            lease.settle(methods.ack, records.AckRequest(JOB_ID, 1), done)
        elif ends == "nacked":
            lease.settle(methods.nack, records.NackRequest(JOB_ID, 1), done)
        else:
            take_the_stream(client)
        await trio.sleep_until(4)
        assert lease.heartbeat is not None
        lease.heartbeat.ring(4.0)
        assert client.statistics().calls_waiting >= 1
        match ends:
            case "let go":
                lease.close()
            case "lost":
                lease.lose("as we were told")
            case "beats end":
                lease.end_beats()
        await trio.sleep(10)
        assert settled == ([Verdict.DONE] if ends in ("acked", "nacked") else [])
        # The last beat of a lease that is kept is no such thing.
        assert len(server.requests("Extend")) == (1 if ends == "beats end" else 0)
        statistics = client.statistics()
        assert (statistics.calls_open, statistics.calls_waiting) == (0, 0)
        lease.close()


async def test_a_beat_that_is_withdrawn_lets_an_extend_go_on_that_waits_for_it(
    nursery: trio.Nursery,
) -> None:
    server = OneAtATime(nursery)
    server.script("GetServerInfo", after(4, Status.UNAVAILABLE))
    async with server.client() as client:
        lease = take_beating(client, 10)
        take_the_stream(client)
        await trio.sleep(2)
        assert lease.heartbeat is not None
        lease.heartbeat.ring(2.0)

        async def extend() -> None:
            with pytest.raises(LeaseLostError):
                await lease.extend(20)
            assert trio.current_time() == 3

        nursery.start_soon(extend)
        await trio.sleep(1)
        lease.lose("as we were told")
        await trio.sleep(3)
        lease.close()
    assert server.requests("Extend") == []


# ---- acks and nacks at the end of the lease ----


async def reserve_one(bench: Bench, lease: float) -> tuple[Job, float]:
    """A job, and when the server ends its lease."""
    await bench.put("t")
    [job] = await bench.client.reserve(ReserveOptions(["emails"], lease))
    end = bench.job(job.id).lease_deadline
    assert end is not None
    return job, end


async def test_an_ack_is_not_repeated_after_the_lease(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pauses are rounded up to the buckets of the wheel, beyond the end."""
    monkeypatch.setattr(_settlement.random, "random", lambda: 0.0)
    await bench.put("t")
    [job] = await bench.client.reserve(ReserveOptions(["emails"], 30))
    bench.inject(Fail("Ack", times=None))
    keeper = bench.client._keeper
    for pauses in (0.025, 0.075, 0.175, 0.375):
        before = len(bench.calls.of("Ack"))
        lease = keeper.open(job.id, job.attempt, asked=1)
        end = trio.current_time() + pauses + 1e-4
        lease.end_at(end, 1, own=True)
        outcome: list[object] = []
        lease.settle(
            keeper.methods.ack,
            records.AckRequest(job.id, job.attempt),
            lambda _, *more, outcome=outcome: outcome.extend(more),
        )
        await trio.sleep(1)
        assert outcome[0] is Verdict.FAILED
        assert before < len(bench.calls.of("Ack"))
        assert max(bench.calls.times("Ack")) < end


async def test_an_ack_at_the_end_of_the_lease_is_not_sent(bench: Bench) -> None:
    job, _ = await reserve_one(bench, 30)
    keeper = bench.client._keeper
    lease = keeper.open(job.id, job.attempt, asked=1)
    lease.end_at(trio.current_time(), 1, own=True)
    outcome: list[object] = []
    request = records.AckRequest(job.id, job.attempt)
    lease.settle(keeper.methods.ack, request, lambda _, *more: outcome.extend(more))
    await trio.sleep(1)
    assert outcome[0] is Verdict.FAILED
    assert bench.calls.of("Ack") == ()
    assert bench.job(job.id).state == "leased"


@pytest.mark.parametrize("way", ["ack", "nack"])
@pytest.mark.parametrize("late", [step / 50 for step in range(1, 16)])
async def test_an_ack_that_could_not_leave_before_the_leases_end_never_leaves(
    bench: Bench, late: float, way: str
) -> None:
    await trio.sleep(0.1)  # so that the wheel has no bucket at the end
    job, end = await reserve_one(bench, 4.0)
    now = trio.current_time()
    bench.inject(BlackHole(2, end + late - 2 - now), DropConnection(3))
    with pytest.raises(BAD_WAY):  # noqa: PT012
        async with bench.client.hold(job, auto_extend=False) as lease:
            await trio.sleep(3.2)
            await (lease.ack() if way == "ack" else lease.nack())
    await trio.sleep(30)
    await bench.client.get_server_info()  # the way is free again
    for rpc in ("Ack", "Nack"):
        assert [at for at in bench.calls.times(rpc) if at >= end] == []


@pytest.mark.parametrize("max_attempts", [1, 2])
async def test_an_ack_that_waits_for_its_repeat_is_not_sent_once_a_beat_knows_better(
    bench: Bench, max_attempts: int
) -> None:
    await bench.put("t", max_attempts=max_attempts)
    [job] = await bench.client.reserve(ReserveOptions(["emails"], 30))
    bench.inject(Fail("Ack", times=None))
    # With another attempt under way the ack cannot have arrived; without one it may.
    lost = pytest.raises(AttemptMismatchError) if max_attempts > 1 else nullcontext()
    async with bench.client.hold(job) as lease:
        await trio.sleep(9)
        await bench.lose_lease(job)
        await bench.client.reserve(ReserveOptions(["emails"], 60, wait_timeout=0))
        with lost:
            await lease.ack()
        assert trio.current_time() == pytest.approx(10, abs=0.01)
    await trio.sleep(30)
    assert 3 < len(bench.calls.of("Ack")) < 8
    assert max(bench.calls.times("Ack")) < 10.01
    assert len(bench.client._keeper) == 0


async def test_a_job_that_is_lost_while_it_is_held_back_is_not_given_back(bench: Bench) -> None:
    """A forced stop waits for its reserve, which could bring the very job; meanwhile a beat that
    was on its way is told that the job is somebody else's."""
    await bench.put("t", max_attempts=1)
    async with bench.running(_sleep, lease=6.0, max_in_flight=2, auto_extend=True) as worker:
        await trio.sleep(0.5)
        [job] = bench.jobs().leased
        bench.inject(Delay("Extend", reply=1.0))
        await bench.lose_lease(job)
        await until(lambda: bench.calls.of("Extend"))
        await trio.sleep(0.7)
        worker.shutdown(grace=0)
    assert worker.statistics().lost == 1
    assert bench.calls.of("Nack") == ()


async def _sleep(payload: object, ctx: object) -> None:
    await trio.sleep(100)
