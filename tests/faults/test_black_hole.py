"""A connection that carries no bytes and is not closed: nobody runs on past a lease."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
import trio

from sepp_trio import (
    JobCtx,
    Payload,
    ReserveOptions,
    Worker,
    open_client,
)
from tests.worker.helpers import until

from .freezing import FreezingProxy, freezing_proxy
from .processes import enqueue
from .servers import BOTH, running_server

pytestmark = pytest.mark.slow

_JOBS = 8
_LEASE = 3.0


@dataclass
class Frozen:
    """A worker behind a proxy, with all jobs in their handlers."""

    address: str
    proxy: FreezingProxy
    worker: Worker
    runs: Counter[str] = field(default_factory=Counter)
    cancelled: dict[str, float] = field(default_factory=dict)
    remaining: list[float] = field(default_factory=list)
    late: float = 0.0

    async def watch_lateness(self) -> None:
        """Note how late this process ran at most: nothing can be cancelled while it does not."""
        while True:
            due = trio.current_time() + 0.01
            await trio.sleep_until(due)
            self.late = max(self.late, trio.current_time() - due)


@asynccontextmanager
async def worker_behind_a_proxy(
    kind: str, *, auto_extend: bool = True, wait_timeout: float = 1.5, keepalive: float = 4
) -> AsyncIterator[Frozen]:
    with running_server(kind) as server:
        await enqueue(server.address, _JOBS)
        async with (
            freezing_proxy(server.port) as proxy,
            open_client(proxy.address, keepalive_timeout=keepalive) as client,
        ):
            worker = Worker(
                client,
                ["q"],
                _LEASE,
                max_in_flight=32,
                auto_extend=auto_extend,
                wait_timeout=wait_timeout,
            )
            frozen = Frozen(server.address, proxy, worker)

            @worker.catch_all
            async def handle(payload: Payload | None, ctx: JobCtx) -> None:
                assert ctx.remaining() > 0
                frozen.runs[ctx.id] += 1
                try:
                    await trio.sleep(60 if frozen.runs[ctx.id] == 1 else 0.2)
                except trio.Cancelled:
                    frozen.cancelled.setdefault(ctx.id, trio.current_time())
                    frozen.remaining.append(ctx.remaining())
                    raise

            async with trio.open_nursery() as nursery:
                nursery.start_soon(frozen.watch_lateness)
                async with trio.open_nursery() as working:
                    await working.start(worker.run)
                    await until(lambda: len(frozen.runs) == _JOBS, 20)
                    yield frozen
                    worker.shutdown(0)
                nursery.cancel_scope.cancel()


async def when_others_get_them(address: str) -> dict[str, float]:
    """Lease each job to somebody else as soon as its lease ends; when that was."""
    got: dict[str, float] = {}
    options = ReserveOptions(["q"], 300, wait_timeout=_LEASE, max_jobs=_JOBS)
    async with open_client(address) as client:
        with trio.fail_after(6 * _LEASE):
            while len(got) < _JOBS:
                for job in await client.reserve(options):
                    got[job.id] = trio.current_time()
    return got


@pytest.mark.parametrize("auto_extend", [True, False])
@pytest.mark.parametrize("kind", BOTH)
async def test_handlers_are_cancelled_before_somebody_else_gets_their_jobs(
    kind: str, auto_extend: bool
) -> None:
    async with worker_behind_a_proxy(kind, auto_extend=auto_extend) as frozen:
        await trio.sleep(1)
        frozen.proxy.freeze()
        ends = await when_others_get_them(frozen.address)
        assert frozen.cancelled.keys() == ends.keys()
        for job_id, cancelled in frozen.cancelled.items():
            assert cancelled <= ends[job_id] + frozen.late
        assert max(frozen.remaining) < 1, "long before the end of the lease"
        frozen.proxy.thaw()
    assert frozen.worker.statistics().acked == 0
    assert frozen.worker.statistics().lost == _JOBS


@pytest.mark.parametrize("kind", BOTH)
async def test_stale_deliveries_are_not_started(kind: str) -> None:
    """The reserve that is parked on the frozen connection wins the jobs, and their new leases
    end as well before the thaw."""
    async with worker_behind_a_proxy(kind, wait_timeout=20, keepalive=20) as frozen:
        await trio.sleep(2)  # now its next reserve is parked
        frozen.proxy.freeze()
        await trio.sleep(3.5 * _LEASE)
        assert sum(frozen.runs.values()) == len(frozen.cancelled) == _JOBS
        frozen.proxy.thaw()
        await until(lambda: frozen.worker.statistics().acked == _JOBS, 20)
    # What the parked reserve had won was lost again; each job ran once more and was acked.
    assert frozen.worker.statistics().lost > _JOBS
    assert set(frozen.runs.values()) == {2}
    assert len(frozen.cancelled) == _JOBS


@pytest.mark.parametrize("kind", BOTH)
async def test_a_dead_connection_is_replaced_within_15_seconds(kind: str) -> None:
    async with worker_behind_a_proxy(kind) as frozen:
        began = trio.current_time()
        frozen.proxy.freeze_for_good()
        await enqueue(frozen.address, 1, "probe")
        await until(lambda: frozen.worker.statistics().acked, began + 15 - trio.current_time())
        assert frozen.proxy.connections == 2
        assert len(frozen.cancelled) == _JOBS
        assert max(frozen.cancelled.values()) - began <= _LEASE + frozen.late
