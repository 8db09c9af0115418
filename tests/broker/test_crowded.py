"""Peers that have not taken their earlier answers: they get no more, and the others do."""

from __future__ import annotations

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from sepp_trio.broker.config import BrokerConfig, StorageConfig
from sepp_trio.broker.engine import Lease
from sepp_trio.broker.validation import ReservePlan
from sepp_trio.wire import decode, records

from .committing import Running, running
from .helpers import job

PAYLOAD = records.Payload(b"x" * 1000, "raw")
KEPT = BrokerConfig(storage=StorageConfig(dead_letter_retention_ms=3_600_000))


class Slow:
    """A call of a peer that may have so many bytes, and takes none of them."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.held = 0
        self.asked: list[tuple[int, int]] = []

    @property
    def peer(self) -> Slow:
        return self

    def allowance(self, own: int, everyone: int) -> int:
        self.asked.append((own, everyone))
        return max(0, self.room - self.held - own)

    def hold(self, size: int) -> None:
        self.held += size


def plan(jobs: int = 10, *, wait: float = 0) -> ReservePlan:
    return ReservePlan(("q",), int(wait * 1000), 30_000, jobs)


async def reserve(rig: Running, slow: Slow, jobs: int = 10, *, wait: float = 0) -> object:
    leases = await rig.committer.reserve(plan(jobs, wait=wait), slow, trio.current_time() + wait)
    return leases if leases is None else len(leases)


async def fill(rig: Running, jobs: int = 10) -> None:
    await rig.enqueue(*[job(payload=PAYLOAD)] * jobs)


async def test_an_answer_is_as_large_as_is_allowed_and_one_job_at_least(
    autojump_clock: MockClock,
) -> None:
    async with running() as rig:
        await fill(rig)
        slow = Slow(3500)
        assert await reserve(rig, slow) == 3
        assert 3000 < slow.held < 3500
        assert await reserve(rig, Slow(1)) == 1
        assert rig.store.depths() == {"q": 10}
        assert len(await rig.reserve(max_jobs=10)) == 6


async def test_who_is_allowed_nothing_is_told_so_at_once(autojump_clock: MockClock) -> None:
    async with running() as rig:
        await fill(rig)
        assert await reserve(rig, Slow(0), wait=5) is None
        assert trio.current_time() < 1
        assert len(await rig.reserve(max_jobs=10)) == 10


async def test_one_that_waits_for_jobs_is_told_when_it_could_have_had_some(
    autojump_clock: MockClock,
) -> None:
    answers: list[object] = []

    async def wait(slow: Slow) -> None:
        answers.append(await reserve(rig, slow, wait=20))

    async with running() as rig, trio.open_nursery() as nursery:
        slow = Slow(1)
        nursery.start_soon(wait, slow)
        await wait_all_tasks_blocked()
        slow.room = 0
        nursery.start_soon(wait, Slow(10_000))
        await wait_all_tasks_blocked()
        assert rig.committer.statistics().parked == 2
        await fill(rig)
        await wait_all_tasks_blocked()
        assert answers in ([None, 9], [9, None])
        assert rig.committer.statistics().parked == 0


async def test_answers_of_one_batch_see_each_other(autojump_clock: MockClock) -> None:
    answers: list[object] = []

    async def ask(slow: Slow) -> None:
        answers.append(await reserve(rig, slow, 2))

    async with running() as rig:
        await fill(rig)
        slow, other = Slow(3000), Slow(5000)
        async with trio.open_nursery() as nursery:
            for one in (slow, slow, slow, other):
                nursery.start_soon(ask, one)
        assert sorted(map(str, answers)) == ["1", "2", "2", "None"]
        assert len({own for own, _ in slow.asked}) == 3
        assert slow.held < 4000  # the last one got a job, which is the least


async def test_a_lease_of_one_who_has_left_holds_nothing(autojump_clock: MockClock) -> None:
    async with running() as rig:
        await fill(rig, 1)
        slow = Slow(5000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reserve, rig, slow)
            nursery.cancel_scope.cancel()
        assert slow.held == 0
        assert len(await rig.reserve()) == 1


async def dead(rig: Running, jobs: int) -> None:
    await fill(rig, jobs)
    leases: list[Lease] = await rig.reserve(max_jobs=jobs)
    for lease in leases:
        request = records.NackRequest(
            decode(records.Job, lease.message).id, 1, retry=records.NackRetry(dead_letter=())
        )
        await rig.committer.submit(lambda now, request=request: rig.engine.nack(request, now))  # type: ignore[misc]


async def test_dead_letters_are_drained_as_far_as_is_allowed(autojump_clock: MockClock) -> None:
    async with running(config=KEPT) as rig:
        await dead(rig, 5)

        def drain(size: int) -> tuple[int, int]:
            response = rig.engine.drain_dead_letters(None, 10, size)
            return len(response.records), sum(map(len, response.records))

        slow = Slow(2500)
        assert await rig.committer.take(drain, slow) == 2
        assert slow.held > 2000
        slow.room = 0
        assert await rig.committer.take(drain, slow) is None
        assert await rig.committer.take(drain, Slow(1)) == 1
        assert await rig.committer.take(drain, Slow(10_000)) == 2
