"""SIGKILL of a worker process: its jobs come back with the next attempt, and all get done.

A few rounds here; ``SEPP_KILL_ROUNDS=50`` for the long run.
"""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
import trio

from tests.worker.helpers import until

from .processes import Said, enqueue, take_ready, worker_process
from .servers import BOTH, kill_rounds, running_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180 + 20 * kill_rounds(2))]


@pytest.mark.parametrize("kind", BOTH)
async def test_each_kill_in_mid_job_costs_each_job_one_attempt(kind: str) -> None:
    jobs, rounds = 8, kill_rounds(2)
    with running_server(kind) as server:
        ids = set(await enqueue(server.address, jobs))
        for number in range(1, rounds + 1):
            async with worker_process(server.address, lease=4, seconds=600) as worker:
                await worker.wait_said("start", jobs)
                await trio.sleep(random.uniform(0.0, 0.3))
                worker.process.kill()
            assert {said.job_id for said in worker.said} == ids
            assert worker.said == [Said("start", s.job_id, number) for s in worker.said]
            assert len(worker.said) == jobs
        async with worker_process(server.address) as last:
            await last.wait_said("end", jobs)
            last.process.terminate()
            await last.process.wait()
        assert {said.job_id: said.attempt for said in last.of("end")} == dict.fromkeys(
            ids, rounds + 1
        )
        assert len(last.said) == 2 * jobs
        assert await take_ready(server.address) == {}


@pytest.mark.parametrize("kind", BOTH)
async def test_kills_at_any_moment_lose_no_job(kind: str) -> None:
    rounds, jobs = kill_rounds(2), 40 * kill_rounds(2)
    runs: defaultdict[str, list[Said]] = defaultdict(list)
    with running_server(kind) as server:
        ids = set(await enqueue(server.address, jobs))

        def take_in(said: list[Said]) -> set[str]:
            for line in said:
                runs[line.job_id].append(line)
            return {line.job_id for line in said if line.what == "end"}

        done: set[str] = set()
        for _ in range(rounds):
            async with worker_process(server.address, lease=0.5, seconds=0.1) as worker:
                await worker.wait_said("start", 1)
                await trio.sleep(random.uniform(0.0, 0.4))
                worker.process.kill()
            done |= take_in(worker.said)
        ids.update(await enqueue(server.address, 1))  # so there is something left to do
        async with worker_process(server.address, lease=5, seconds=0.01) as last:
            await until(lambda: done | {said.job_id for said in last.of("end")} == ids, 30)
            # A job whose end was said just before the kill may not have been acked.
            await trio.sleep(3.0)
            last.process.terminate()
            assert await last.process.wait() == 0
        done |= take_in(last.said)
        assert done == ids
        assert await take_ready(server.address) == {}
    for said in runs.values():
        attempts = [line.attempt for line in said if line.what == "start"]
        assert attempts == sorted(set(attempts))
