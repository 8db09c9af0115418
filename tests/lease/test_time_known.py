"""When the server's time is asked for, and what waits for it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio

from sepp_trio import (
    BrokerConfig,
    EnqueueRequest,
    JobCtx,
    LeaseLostError,
    LimitsConfig,
    Payload,
    ReserveOptions,
    SeppClient,
    Worker,
    open_client,
)
from sepp_trio.broker import QueueConfig
from sepp_trio.testing import (
    CallLog,
    Delay,
    Fault,
    FaultProxy,
    FragileServer,
    LoseReply,
    Recorder,
    open_fault_proxy,
    open_fragile_server,
)
from tests.worker.helpers import running

NEVER = LoseReply("GetServerInfo", silent=True, times=None)


@dataclass
class Scene:
    """A server whose clock can be set, its jobs, the way to it, and a client."""

    server: FragileServer
    recorder: Recorder
    proxy: FaultProxy
    calls: CallLog
    client: SeppClient
    producer: SeppClient
    started: list[float] = field(default_factory=list)

    async def put(self) -> None:
        await self.producer.enqueue(EnqueueRequest("q", "t", max_attempts=1))

    async def put_after_jump(self, jump: float, fault: Fault) -> None:
        """Set the server's clock, whose time is not told at once, and put a job."""
        await self.server.jump_clock(jump)
        self.proxy.inject(fault)
        await self.put()

    def worker(self, lease: float, seconds: float = 0.1, **options: object) -> Worker:
        """A worker with a handler that takes so long."""
        worker = Worker(self.client, ["q"], lease, **options)  # type: ignore[arg-type]

        async def handle(payload: Payload | None, ctx: JobCtx) -> None:
            self.started.append(trio.current_time())
            await trio.sleep(seconds)

        worker.handle("t", handle)
        return worker

    def truth(self) -> float:
        """When the server will end the lease of the only job."""
        [job] = self.recorder.jobs().leased
        assert job.lease_deadline is not None
        return job.lease_deadline


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with make_scene() as scene:
        yield scene


@asynccontextmanager
async def make_scene() -> AsyncIterator[Scene]:
    recorder, calls = Recorder(), CallLog()
    async with (
        open_fragile_server(recorder=recorder) as server,
        open_client(server.connect) as producer,
        open_fault_proxy(server.connect, observer=calls) as proxy,
        open_client(proxy.connect) as client,
    ):
        yield Scene(server, recorder, proxy, calls, client, producer)


# ---- asked for in time ----


@pytest.mark.parametrize("auto_extend", [True, False])
async def test_a_short_lease_is_whole_after_an_hour_without_jobs(
    scene: Scene, auto_extend: bool
) -> None:
    """In that time the clocks may have drifted apart by more than such a lease."""
    worker = scene.worker(1.7, auto_extend=auto_extend, wait_timeout=2.5)
    async with running(worker):
        await trio.sleep(3602)  # the reserve has waited longer than the lease is
        await scene.put()
        await trio.sleep(1)
    assert worker.statistics().lost == 0
    assert scene.recorder.jobs().acked
    assert 55 <= len(scene.calls.of("GetServerInfo")) <= 65


async def test_a_client_that_was_idle_for_an_hour_reads_a_whole_lease(scene: Scene) -> None:
    await scene.client.get_server_info()
    await trio.sleep(3600)

    async def put() -> None:
        await trio.sleep(3)
        await scene.put()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(put)
        [job] = await scene.client.reserve(ReserveOptions(["q"], 1.7, wait_timeout=5))
    assert job.lease_deadline is not None
    assert job.lease_deadline - trio.current_time() > 1.69
    assert job.lease_deadline <= scene.truth()


async def test_leases_of_a_tenth_of_a_second_are_kept_whole(scene: Scene) -> None:
    worker = scene.worker(0.1, seconds=0.05, auto_extend=False, wait_timeout=3)
    async with running(worker):
        for _ in range(20):
            await trio.sleep(2.9)
            await scene.put()
            await trio.sleep(4)
    assert worker.statistics().lost == 0
    assert len(scene.recorder.jobs().acked) == 20


# ---- leases that may be over at their receipt ----

SET = [3600.0, -3600.0, 30.0, -30.0, 1.0, -5.0]
"""The last one looks like an answer that was on its way for five seconds."""


@pytest.mark.parametrize("jump", SET)
async def test_a_job_whose_lease_may_be_over_waits_for_the_servers_time_and_runs(
    scene: Scene, jump: float
) -> None:
    worker = scene.worker(2.0, wait_timeout=20)
    async with running(worker):
        await trio.sleep(10)
        await scene.put_after_jump(jump, Delay("GetServerInfo", reply=0.5))
        await trio.sleep(5)
    assert scene.started == [pytest.approx(10.5, abs=0.01)]
    assert worker.statistics().lost == 0
    assert scene.recorder.jobs().acked


@pytest.mark.parametrize("jump", SET)
async def test_a_job_by_hand_whose_lease_may_be_over_is_given_when_that_is_known(
    scene: Scene, jump: float
) -> None:
    await scene.client.get_server_info()

    async def put() -> None:
        await trio.sleep(10)
        await scene.put_after_jump(jump, Delay("GetServerInfo", reply=0.5))
        await trio.sleep(0.2)
        scope.cancel()  # which is not heeded now: the job would be stranded

    async with trio.open_nursery() as nursery:
        nursery.start_soon(put)
        with trio.CancelScope() as scope:
            [job] = await scene.client.reserve(ReserveOptions(["q"], 2.0, wait_timeout=20))
    assert trio.current_time() == pytest.approx(10.5)
    assert job.lease_deadline is not None
    assert 11.98 < job.lease_deadline <= scene.truth()


async def test_a_job_whose_answer_was_longer_on_its_way_than_its_lease_is_left_alone(
    scene: Scene,
) -> None:
    worker = scene.worker(2.0, wait_timeout=20)
    async with running(worker):
        await trio.sleep(10)
        scene.proxy.inject(Delay("Reserve", reply=4.0))
        await scene.put()  # for the reserve that waits already
        await trio.sleep(1)
        await scene.put()  # for the next one
        await trio.sleep(10)
    assert worker.statistics().lost == 1
    assert len(scene.started) == 1
    assert scene.calls.of("Nack") == ()


@pytest.mark.parametrize("by_hand", [False, True])
async def test_a_lease_that_was_over_before_the_clock_was_set_back_stays_over(
    scene: Scene, by_hand: bool
) -> None:
    async def trouble() -> None:
        await trio.sleep(10)
        scene.proxy.inject(Delay("Reserve", reply=4.0))
        await trio.sleep(1)
        await scene.put()
        await trio.sleep(3)
        await scene.server.jump_clock(-3600)

    await scene.client.get_server_info()
    worker = scene.worker(2.0, wait_timeout=12)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trouble)
        if by_hand:
            await trio.sleep(10.5)
            [job] = await scene.client.reserve(ReserveOptions(["q"], 2.0, wait_timeout=12))
            assert trio.current_time() == pytest.approx(15)
            assert job.lease_deadline is not None
            assert job.lease_deadline <= 15
        else:
            await trio.sleep(10.5)
            async with running(worker):
                await trio.sleep(4.7)
                assert worker.statistics().lost == 1
                worker.shutdown(grace=0)
            assert scene.started == []
    assert scene.calls.of("Nack") == ()


async def test_by_hand_the_servers_time_is_waited_for_a_second_at_most(scene: Scene) -> None:
    await scene.client.get_server_info()

    async def put() -> None:
        await trio.sleep(10)
        await scene.put_after_jump(3600, NEVER)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(put)
        [job] = await scene.client.reserve(ReserveOptions(["q"], 2.0, wait_timeout=20))
    assert trio.current_time() == pytest.approx(11)
    assert job.lease_deadline is not None
    assert job.lease_deadline <= scene.truth()


async def test_a_job_whose_lease_ends_before_the_server_tells_its_time_is_left_alone(
    scene: Scene,
) -> None:
    worker = scene.worker(2.0, wait_timeout=20)
    async with running(worker):
        await trio.sleep(10)
        await scene.put_after_jump(3600, NEVER)
        await trio.sleep(1.9)
        assert worker.statistics().lost == 0
        await trio.sleep(0.2)
        assert worker.statistics().lost == 1
        scene.proxy.relent()
        await scene.put()  # and all is well with the next
        await trio.sleep(5)
    assert len(scene.started) == 1
    assert len(scene.recorder.jobs().acked) == 1
    assert scene.calls.of("Nack") == ()


async def test_a_worker_that_drains_runs_a_job_that_waited_for_the_servers_time(
    scene: Scene,
) -> None:
    worker = scene.worker(2.0, wait_timeout=20)
    async with running(worker):
        await trio.sleep(10)
        await scene.put_after_jump(3600, Delay("GetServerInfo", reply=0.5))
        await trio.sleep(0.1)
    assert scene.started == [pytest.approx(10.5, abs=0.01)]
    assert scene.recorder.jobs().acked


@pytest.mark.parametrize("told", [True, False])
async def test_a_forced_stop_gives_it_back_or_leaves_it(scene: Scene, told: bool) -> None:
    worker = scene.worker(8.0, wait_timeout=20)
    async with running(worker):
        await trio.sleep(10)
        await scene.put_after_jump(3600, Delay("GetServerInfo", reply=0.5) if told else NEVER)
        await trio.sleep(0.1)
        worker.shutdown(grace=0)
    assert trio.current_time() < 11 if told else 13 < trio.current_time() < 14
    assert scene.started == []
    assert len(scene.calls.of("Nack")) == told
    statistics = worker.statistics()
    assert (statistics.lost, statistics.dead_lettered) == ((0, 1) if told else (1, 0))
    scene.proxy.relent()
    await trio.sleep(20)
    assert scene.started == []


# ---- servers that grant less ----


@pytest.mark.parametrize("caps", [(5000, 10_000), (10_000, 5000)])
async def test_a_server_that_is_set_to_other_leases_is_asked_about_it_once(
    scene: Scene, caps: tuple[int, int]
) -> None:
    before, after = (BrokerConfig(limits=LimitsConfig(max_lease_duration_ms=cap)) for cap in caps)
    await scene.server.restart(0, config=before)
    await scene.client.get_server_info()
    worker = scene.worker(30.0, auto_extend=False)
    async with running(worker):
        await trio.sleep(1)
        await scene.server.restart(0, config=_capped(after, caps[0]))
        asked = len(scene.calls.of("GetServerInfo"))
        for _ in range(60):
            await scene.put()
            await trio.sleep(1)
    assert len(scene.recorder.jobs().acked) == 60
    assert len(scene.calls.of("GetServerInfo")) - asked <= 4


@pytest.mark.parametrize("known", [True, False])
async def test_what_a_server_grants_is_learned_though_an_answer_came_too_late(
    scene: Scene, known: bool
) -> None:
    capped = BrokerConfig(queues=(QueueConfig("q", max_lease_duration_ms=3999),))
    await scene.server.restart(0, config=capped)
    await scene.client.get_server_info()
    worker = scene.worker(60.0, auto_extend=False, wait_timeout=8, max_in_flight=2)
    async with running(worker):
        await trio.sleep(1)
        if known:
            await scene.put()
        await trio.sleep(4)
        scene.proxy.inject(Delay("Reserve", reply=7.0))
        await trio.sleep(10)  # of the next reserve
        await scene.put()
        await trio.sleep(12)
        lost = worker.statistics().lost
        for _ in range(20):
            await scene.put()
            await trio.sleep(7)
    assert lost == 1
    assert worker.statistics().lost == lost
    assert len(scene.recorder.jobs().acked) == 20 + known


def _capped(config: BrokerConfig, said: int) -> BrokerConfig:
    """The same for the queue, while the server as a whole says something else."""
    queue = QueueConfig("q", max_lease_duration_ms=config.limits.max_lease_duration_ms)
    return BrokerConfig(limits=LimitsConfig(max_lease_duration_ms=said), queues=(queue,))


# ---- a doubt is settled by an answer that was asked for later ----


async def test_a_time_from_before_the_clock_was_set_settles_nothing(scene: Scene) -> None:
    await scene.put()
    [job] = await scene.client.reserve(ReserveOptions(["q"], 30))
    async with scene.client.hold(job) as lease:
        await trio.sleep(9.5)
        scene.proxy.inject(Delay("GetServerInfo", reply=1.9), Delay("Extend", reply=0.5))
        scene.client._keeper.ask_time()
        await trio.sleep(0.1)
        await scene.server.jump_clock(15)
        for _ in range(400):
            await trio.sleep(0.01)
            # Until the beat at 10 the client cannot know; its answer comes at 10.5.
            if trio.current_time() > 10.51:
                assert lease.remaining() <= scene.truth() - trio.current_time() + 1e-6
        assert lease.remaining() > scene.truth() - trio.current_time() - 0.01
        await lease.ack()


# ---- leases that turn out to be shorter ----


async def test_a_settling_lease_that_is_over_by_a_clock_that_was_set_is_asked_about_once(
    scene: Scene,
) -> None:
    """However often one asked, it would not be known better."""
    scene.proxy.inject(Delay("Ack", reply=10))
    worker = scene.worker(60.0, seconds=5, auto_extend=False)
    async with running(worker):
        await scene.put()
        await trio.sleep(8)
        await scene.server.jump_clock(3600)
        asked = len(scene.calls.of("GetServerInfo"))
        await scene.put()  # whose lease shows the jump
        await trio.sleep(5)
        assert len(scene.calls.of("GetServerInfo")) - asked <= 2
    assert scene.recorder.jobs().acked


async def test_a_lease_that_turns_out_to_end_soon_is_extended_at_once(scene: Scene) -> None:
    await scene.put()
    [job] = await scene.client.reserve(ReserveOptions(["q"], 30))
    async with scene.client.hold(job, interval=10) as lease:
        await trio.sleep(11)  # it was extended a second ago
        await scene.server.jump_clock(25)
        await scene.client.get_server_info()
        assert 3.9 < lease.remaining() <= 4
        await trio.sleep(60)
        await lease.ack()
    assert scene.recorder.jobs().acked


async def test_a_beat_on_its_way_is_withdrawn_by_the_end_that_has_come_nearer(
    scene: Scene,
) -> None:
    await scene.put()
    [job] = await scene.client.reserve(ReserveOptions(["q"], 30))
    with pytest.raises(LeaseLostError):  # noqa: PT012
        async with scene.client.hold(job, interval=10):
            await trio.sleep(11)
            scene.proxy.inject(Delay("Extend", request=100))
            await trio.sleep(10)  # the second beat is held up
            await scene.server.jump_clock(15)
            await scene.client.get_server_info()
            with trio.CancelScope(shield=True):
                await trio.sleep_until(24.5)
                assert scene.client._channel.statistics().calls_open == 1
                await trio.sleep_until(25.01)
                assert scene.client._channel.statistics().calls_open == 0
