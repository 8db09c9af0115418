"""A sweep on a broker that the handler uses as well."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from sepp_trio import EnqueueRequest, JobCtx, Payload, SeppClient
from sepp_trio.broker import BrokerConfig
from sepp_trio.testing import (
    RecordingBroker,
    SweepRun,
    WorkerStarter,
    cancellation_sweep,
)
from tests.testing.sweeping import failure_of


class Orders:
    """Takes an order, and enqueues its mail."""

    def __init__(self, client: SeppClient, key: str | None) -> None:
        self._client = client
        self._key = key

    async def take(self, payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(1)
        request = EnqueueRequest("mail", "thanks", idempotency_key=self._key)
        await self._client.enqueue(request)
        await trio.sleep(1)


async def test_follow_up_jobs_are_those_of_their_history(
    sepp_broker: RecordingBroker, sepp_client: SeppClient, autojump_clock: MockClock
) -> None:
    def invariant(run: SweepRun) -> None:
        assert len(sepp_broker.jobs("mail")) <= 1
        assert not run.settled or sepp_broker.jobs("mail").ready

    report = await cancellation_sweep(
        Orders(sepp_client, "thanks for order 7").take,
        invariant=invariant,
        broker=sepp_broker,
        by=["lease lost", "takeover", "shutdown", "timeout"],
    )
    assert {point.awaits for point in report.checkpoints} >= {
        "trio.sleep",
        "sepp_trio.client.SeppClient.enqueue",
    }
    assert len(sepp_broker.jobs("mail")) == 1


async def test_a_second_follow_up_is_found(
    sepp_broker: RecordingBroker, sepp_client: SeppClient, autojump_clock: MockClock
) -> None:
    def invariant(run: SweepRun) -> None:
        assert len(sepp_broker.jobs("mail")) <= 1

    failure = await failure_of(
        Orders(sepp_client, None).take, invariant=invariant, broker=sepp_broker
    )
    assert failure.problem.startswith("the invariant does not hold after delivery 2")
    assert len(failure.history) == 2


async def test_follow_up_jobs_can_be_worked_off(
    sepp_broker: RecordingBroker,
    sepp_client: SeppClient,
    sepp_worker: WorkerStarter,
    autojump_clock: MockClock,
) -> None:
    sent: list[int] = []

    async def send(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(5)
        sent.append(1)

    async def invariant(run: SweepRun) -> None:
        if run.settled:
            await sepp_broker.settled("mail")
            assert len(sent) == len(sepp_broker.jobs("mail").acked) == 1

    await sepp_worker("mail", {"thanks": send})
    await cancellation_sweep(
        Orders(sepp_client, "thanks for order 7").take,
        setup=sent.clear,
        invariant=invariant,
        broker=sepp_broker,
    )


async def test_setup_enqueues_what_the_history_begins_with(
    sepp_broker: RecordingBroker, sepp_client: SeppClient, autojump_clock: MockClock
) -> None:
    async def setup() -> None:
        assert not sepp_broker.jobs()
        await sepp_client.enqueue(EnqueueRequest("mail", "thanks", idempotency_key="before"))

    def invariant(run: SweepRun) -> None:
        assert len(sepp_broker.jobs("mail")) == 1

    await cancellation_sweep(
        Orders(sepp_client, "before").take, setup=setup, invariant=invariant, broker=sepp_broker
    )


@pytest.mark.parametrize("who", ["handler", "setup"])
async def test_other_jobs_in_the_queue_of_the_sweep_are_refused(
    who: str, sepp_broker: RecordingBroker, sepp_client: SeppClient, autojump_clock: MockClock
) -> None:
    async def intrude(*args: object) -> None:
        await sepp_client.enqueue(EnqueueRequest("mail", "thanks"))

    async def nothing(*args: object) -> None:
        pass

    with pytest.raises(ValueError, match=r"type 'thanks' came to queue 'mail'.*another queue="):
        await cancellation_sweep(
            intrude if who == "handler" else nothing,
            setup=intrude if who == "setup" else None,
            broker=sepp_broker,
            queue="mail",
        )


async def test_jobs_that_are_not_done_are_not_removed(
    sepp_broker: RecordingBroker, sepp_client: SeppClient, autojump_clock: MockClock
) -> None:
    await sepp_client.enqueue(EnqueueRequest("mail", "thanks"))
    with pytest.raises(ValueError, match=r"broker must have no jobs, .*'thanks' in 'mail', ready"):
        await cancellation_sweep(Orders(sepp_client, None).take, broker=sepp_broker)
    assert len(sepp_broker.jobs().ready) == 1


async def test_settings_are_those_of_the_broker(
    sepp_broker: RecordingBroker, sepp_client: SeppClient, autojump_clock: MockClock
) -> None:
    handler = Orders(sepp_client, None).take
    with pytest.raises(ValueError, match="config is that of broker"):
        await cancellation_sweep(handler, broker=sepp_broker, config=BrokerConfig())
    with pytest.raises(TypeError, match="broker must be a RecordingBroker, not SeppClient"):
        await cancellation_sweep(handler, broker=sepp_client)  # type: ignore[arg-type]


async def test_the_broker_goes_on_after_the_sweep(
    sepp_broker: RecordingBroker,
    sepp_client: SeppClient,
    sepp_worker: WorkerStarter,
    autojump_clock: MockClock,
) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(1)

    await cancellation_sweep(handler, broker=sepp_broker)
    await sepp_client.enqueue(EnqueueRequest("test", "later"))
    await sepp_worker("test", {"later": handler})
    await sepp_broker.settled()
    assert [job.state for job in sepp_broker.jobs(job_type="later")] == ["acked"]
