"""A server whose clock is an hour off: as many extends as ever, and no job runs twice."""

from __future__ import annotations

import time
from contextlib import ExitStack

import pytest
import trio

from sepp_trio import EnqueueRequest, JobCtx, Payload, Worker, open_client
from tests.worker.helpers import running, until

from .servers import BOTH, Server, faketime_library, running_server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        faketime_library() is None,
        reason="no libfaketime to shift the server's clock (Debian: apt-get install faketime)",
    ),
]

_JOBS = 4
_HOUR = 3600


async def extends_of_four_jobs(server: Server) -> int:
    """Run jobs of 8.4 s on leases of 3.6 s; the number of extends."""
    starts: list[str] = []
    async with open_client(server.address) as client:
        info = await client.get_server_info()
        shift = info.server_time.timestamp() - time.time()
        assert shift == pytest.approx(server.ahead, abs=30), "the clock was not shifted"
        ids = [(await client.enqueue(EnqueueRequest("q", "t"))).job_id for _ in range(_JOBS)]
        worker = Worker(client, ["q"], 3.6, auto_extend=True, wait_timeout=1)

        @worker.handler("t")
        async def handle(payload: Payload | None, ctx: JobCtx) -> None:
            starts.append(ctx.id)
            await trio.sleep(8.4)

        async with running(worker):
            await until(lambda: worker.statistics().acked == _JOBS, 40)
    assert sorted(starts) == sorted(ids)
    assert worker.statistics().lost == worker.statistics().extends_failed == 0
    return worker.statistics().extends


@pytest.mark.parametrize("kind", BOTH)
async def test_an_hour_ahead_or_behind_changes_nothing(kind: str) -> None:
    extends: dict[int, int] = {}

    async def count(server: Server) -> None:
        extends[server.ahead] = await extends_of_four_jobs(server)

    with ExitStack() as servers:
        async with trio.open_nursery() as nursery:
            for server in [
                servers.enter_context(running_server(kind, ahead=ahead))
                for ahead in (0, _HOUR, -_HOUR)
            ]:
                nursery.start_soon(count, server)
    # A beat every 1.2 s, the first anywhere in its interval: 6 or 7 a job, and fewer if this
    # machine stands still. Whoever went by the server's clock would beat at once, or never.
    assert all(4 * _JOBS <= count <= 8 * _JOBS for count in extends.values()), extends
