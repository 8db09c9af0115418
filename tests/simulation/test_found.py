"""What the simulation has found, each as a test of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import pytest
import trio

from sepp_trio import (
    EnqueueRequest,
    JobCtx,
    LeaseLostError,
    Payload,
    ReserveOptions,
    SeppClient,
    TransportError,
    Worker,
    open_client,
)
from sepp_trio.testing import (
    Delay,
    FaultPlan,
    LoseLease,
    LoseReply,
    ProxiedCall,
    open_fault_proxy,
    open_fragile_server,
)
from tests.simulation.simulation import on_leaping_clock


class Asked:
    """The kinds of calls that a client has made."""

    def __init__(self) -> None:
        self.rpcs: list[str] = []

    def asked(self, call: ProxiedCall) -> None:
        self.rpcs.append(call.rpc)

    def answered(self, call: ProxiedCall) -> None:
        """Of no interest."""

    def reset(self, call: ProxiedCall) -> None:
        """Of no interest."""

    def lost(self, call: ProxiedCall) -> None:
        """Of no interest."""


@asynccontextmanager
async def a_worker(
    *faults: Delay | LoseLease, **options: object
) -> AsyncIterator[tuple[SeppClient, Worker, Asked]]:
    """A worker behind faults, and a client in front of them."""
    asked = Asked()
    async with (
        open_fragile_server() as server,
        open_client(server.connect) as producer,
        open_fault_proxy(server.connect, FaultPlan(faults), observer=asked) as proxy,
        open_client(proxy.connect) as client,
    ):
        yield producer, Worker(client, ["q"], 3.0, **options), asked  # type: ignore[arg-type]


async def _sleep(payload: Payload | None, ctx: JobCtx) -> None:
    await trio.sleep(10.0)


@on_leaping_clock
async def test_nothing_is_sent_for_a_job_without_handler_that_arrives_after_its_lease() -> None:
    async with a_worker(Delay("Reserve", reply=4.0)) as (producer, worker, asked):
        await producer.enqueue(EnqueueRequest("q", "unknown", max_attempts=1))
        worker.handle("known", _sleep)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run)
            await trio.sleep(4.5)
            worker.shutdown()
        assert worker.statistics().lost == 1
    assert "Nack" not in asked.rpcs


@on_leaping_clock
async def test_nothing_is_sent_at_a_forced_stop_for_a_waiting_job_whose_lease_is_lost() -> None:
    options = {"auto_extend": True, "max_in_flight": 2}
    async with a_worker(LoseLease(0.5, by="ack", pick=1), **options) as (producer, worker, asked):
        await producer.enqueue_batch([EnqueueRequest("q", "t"), EnqueueRequest("q", "t")])
        worker.handle("t", _sleep, max_in_flight=1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run)
            await trio.sleep(2.5)  # by now a beat has learned of it
            worker.shutdown(grace=0)
        assert worker.statistics().lost == 1
    assert asked.rpcs.count("Nack") == 1


@pytest.mark.parametrize("auto_extend", [False, True])
def test_an_extend_whose_answer_is_lost_may_have_made_the_lease_shorter(auto_extend: bool) -> None:
    @on_leaping_clock
    async def run() -> None:
        plan = FaultPlan((LoseReply("Extend", silent=True),))
        async with (
            open_fragile_server() as server,
            open_client(server.connect) as other,
            open_fault_proxy(server.connect, plan) as proxy,
            open_client(proxy.connect) as client,
        ):
            await other.enqueue(EnqueueRequest("q", "t"))
            [job] = await client.reserve(ReserveOptions(["q"], 30.0))
            with pytest.raises(LeaseLostError) if not auto_extend else nullcontext():
                async with client.hold(job, auto_extend=auto_extend) as lease:
                    with pytest.raises(TransportError):
                        await lease.extend(4.0)  # the server has done it
                    await trio.sleep(20.0)
                    await lease.ack()
            if not auto_extend:
                assert trio.current_time() < 4.0
                await other.reserve(ReserveOptions(["q"], 30.0, wait_timeout=1))
                assert trio.current_time() >= 4.0

    run()
