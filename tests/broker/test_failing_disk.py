"""A store that fails: every operation of the batch is told, nothing of it is done, and it goes
on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing
from grpclib.const import Status
from grpclib.exceptions import GRPCError
from trio.testing import MockClock

from .committing import Running, ids, running
from .helpers import job


def fill(rig: Running) -> Callable[[], None]:
    """Let the database grow no more; returns what frees the disk again."""
    execute = rig.store._connection.execute
    execute(f"PRAGMA max_page_count = {execute('PRAGMA page_count').fetchone()[0]}")
    return lambda: execute("PRAGMA max_page_count = 1000000") and None


LARGE = [job(custom={}, job_type="t" * 200)] * 200


async def status_of_large(rig: Running) -> str:
    try:
        await rig.enqueue(*LARGE)
    except GRPCError as error:
        return f"{error.status.name} {error.message}"
    return "OK"


@pytest.mark.parametrize("place", ["memory", "file"])
async def test_a_full_disk_fails_the_batch_and_the_next_one_works(
    place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    answers: list[str] = []

    async def small() -> None:
        try:
            await rig.add()
        except GRPCError as error:
            answers.append(error.status.name)

    async def wait() -> None:
        answers.append(f"reserved {len(await rig.reserve('p', wait=20))}")

    async def new_reserve() -> None:
        with pytest.raises(GRPCError) as caught:
            await rig.reserve("other", wait=20)
        answers.append(f"reserve {caught.value.status.name}")

    async with running(str(tmp_path / "jobs.db") if place == "file" else None) as rig:
        await rig.add()
        free = fill(rig)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            for _ in range(3):
                nursery.start_soon(small)
            nursery.start_soon(new_reserve)
            assert await status_of_large(rig) == "INTERNAL storage failed: the disk is full"
            await trio.testing.wait_all_tasks_blocked()
            assert sorted(answers) == ["INTERNAL"] * 3 + ["reserve INTERNAL"]
            assert rig.store.depths() == {"q": 1}
            assert "full" in caplog.text
            assert "Traceback" not in caplog.text
            free()
            await rig.add("p")
            # Who waited has gone on waiting.
            await trio.testing.wait_all_tasks_blocked()
            assert answers[-1] == "reserved 1"
        assert await status_of_large(rig) == "OK"
        assert rig.store.depths() == {"q": 201, "p": 1}
        assert rig.committer.statistics().failed_batches == 1


async def test_a_sweep_that_fails_is_tried_again_without_haste(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async with running() as rig:
        await rig.add(delay=1)
        failing = 3
        sweep = rig.engine.sweep

        def fail_at_first(now: int) -> None:
            nonlocal failing
            sweep(now)
            if failing:
                failing -= 1
                raise OSError("no disk")

        monkeypatch.setattr(rig.engine, "sweep", fail_at_first)
        start = trio.current_time()
        assert len(await rig.reserve(wait=20)) == 1
        assert trio.current_time() == pytest.approx(start + 4, abs=0.01)
        assert rig.committer.statistics().batches < 10


async def test_a_fault_of_the_broker_is_logged_and_fails_its_batch(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    def break_(now: int) -> None:
        rig.engine.enqueue_batch([job()], now)
        raise ZeroDivisionError

    async with running() as rig:
        with pytest.raises(GRPCError) as caught:
            await rig.committer.submit(break_)
        assert caught.value.status is Status.INTERNAL
        assert any(record.exc_info for record in caplog.records if record.levelno == logging.ERROR)
        assert rig.store.depths() == {}
        job_id = await rig.add()
        assert ids(await rig.reserve()) == [job_id]


async def test_a_job_that_cannot_be_given_back_is_logged(
    caplog: pytest.LogCaptureFixture, autojump_clock: MockClock
) -> None:
    async with running() as rig:
        await rig.add()
        leases = await rig.reserve(lease=10)
        rig.store._connection.execute(
            "CREATE TRIGGER no BEFORE INSERT ON ready BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
        rig.committer.give_back(leases)
        await trio.testing.wait_all_tasks_blocked()
        rig.store._connection.execute("DROP TRIGGER no")
        assert "rolled back" in caplog.text
        assert await rig.ack(leases[0]) == "OK"
