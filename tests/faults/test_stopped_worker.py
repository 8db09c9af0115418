"""SIGTERM of a worker process under load: it drains, and nothing stays leased."""

from __future__ import annotations

import random
import signal

import pytest
import trio

from .processes import enqueue, take_ready, worker_process
from .servers import BOTH, running_server

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("pause", [0.0, 0.07])
@pytest.mark.parametrize("kind", BOTH)
async def test_a_signal_under_load_drains_and_leaves_nothing_leased(
    kind: str, pause: float
) -> None:
    jobs = 2000  # more than it can do before the signal is there
    with running_server(kind) as server:
        await enqueue(server.address, jobs)
        options = {"in_flight": 64, "lease": 300, "seconds": 0.15}
        async with worker_process(server.address, **options) as worker:
            await worker.wait_said("start", 64)
            await trio.sleep(pause)
            worker.process.terminate()
            with trio.fail_after(30):
                assert await worker.process.wait() == 0
        assert worker.errors == b""
        started = {(said.job_id, said.attempt) for said in worker.of("start")}
        ended = {(said.job_id, said.attempt) for said in worker.of("end")}
        assert started == ended
        assert {attempt for _, attempt in ended} == {1}
        left = await take_ready(server.address)
        assert len(left) == jobs - len(ended)
        assert set(left.values()) <= {1}
        assert left, "the queue was to be full until the end"


@pytest.mark.parametrize("kind", BOTH)
async def test_ctrl_c_without_any_handling_leaves_nothing_leased(kind: str) -> None:
    """A KeyboardInterrupt at any moment ends the program, but not in the middle of the books."""
    jobs = 300
    with running_server(kind) as server:
        for _ in range(4):
            ids = set(await enqueue(server.address, jobs))
            options = {"in_flight": 64, "lease": 300, "seconds": 0.005, "bare": 1}
            async with worker_process(server.address, **options) as worker:
                await worker.wait_said("start", 1)
                await trio.sleep(random.uniform(0.0, 0.05))
                worker.process.send_signal(signal.SIGINT)
                with trio.fail_after(30):
                    assert await worker.process.wait() == -signal.SIGINT
            ended = {said.job_id for said in worker.of("end")}
            assert ended | (await take_ready(server.address)).keys() == ids
