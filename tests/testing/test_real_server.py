"""The proxy before both servers as processes: faults are the same on the real one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio

from sepp_trio import (
    EnqueueRequest,
    JobNotFoundError,
    ReserveOptions,
    TransportError,
    open_client,
)
from sepp_trio.testing import (
    Delay,
    Fail,
    FaultPlan,
    LoseLease,
    LoseReply,
    open_fault_proxy,
)
from sepp_trio.transport import tcp_connector
from tests.conformance.servers import EMBEDDED, HOW_TO_GET_IT, REAL, Server, real_binary

NOT_THERE = pytest.mark.skipif(real_binary() is None, reason=HOW_TO_GET_IT)


@pytest.fixture(params=[EMBEDDED, pytest.param(REAL, marks=[pytest.mark.real_server, NOT_THERE])])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(request.param, "").start()
    try:
        yield server
    finally:
        server.kill()


PLAN = FaultPlan(
    (
        Delay("EnqueueBatch", request=0.2),
        LoseReply("Ack"),
        Fail("Ack", 2),
        LoseReply("Nack", silent=True),
        LoseLease(4, by="ack"),
        LoseLease(4, by="expiry", pick=1),
    )
)


@pytest.mark.trio(run=trio.run)  # on the real clock
async def test_a_plan_happens_on_any_server(server: Server) -> None:
    host, port = server.address.split(":")
    options = ReserveOptions(["q"], 20, wait_timeout=0, max_jobs=5)
    async with (
        open_fault_proxy(tcp_connector(host, int(port)), PLAN) as proxy,
        open_client(proxy.connect, rpc_timeout=3) as client,
    ):
        began = trio.current_time()
        await client.enqueue_batch([EnqueueRequest("q", "t", priority=9 - n) for n in range(4)])
        assert trio.current_time() - began >= 0.2
        lost, nacked, stolen, expired = await client.reserve(options)
        with pytest.raises(TransportError, match="the connection was lost"):
            await client.ack(lost)
        with pytest.raises(TransportError, match="fault plan"):
            await client.ack(lost)
        with pytest.raises(JobNotFoundError):
            await client.ack(lost)
        with pytest.raises(TransportError, match="deadline"):
            await client.nack(nacked)
        await trio.sleep_until(began + 7)
        for job in (stolen, expired):
            with pytest.raises(JobNotFoundError):
                await client.ack(job)
        again = {job.id: job.attempt for job in await client.reserve(options)}
        assert again == {nacked.id: 2, expired.id: 2}
    assert [type(item.fault) for item in proxy.happened] == [type(fault) for fault in PLAN.faults]
