"""One worker on a server, and any list of things that happen to them, in any order."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import trio
from grpclib.const import Status
from hypothesis import given, settings
from hypothesis import strategies as st

from sepp_trio import HandlerError, JobCtx, JobNotFoundError, Payload, WorkerStatistics, open_client
from sepp_trio.testing import (
    BlackHole,
    DropConnection,
    Fail,
    JobHistory,
    Recorder,
    open_fault_proxy,
    open_fragile_server,
)
from tests.virtual_time import run_on_leaping_clock
from tests.worker.bench import CONFIG
from tests.worker.helpers import enqueue, worker_on

LEASE = 4.0
KINDS = ("ok", "slow", "fail", "permanent", "hang", "stubborn")

kinds = st.sampled_from([*KINDS, "nobody's"])
passing = st.sampled_from([Status.UNAVAILABLE, Status.INTERNAL, Status.DEADLINE_EXCEEDED])
rpcs = st.sampled_from(["Ack", "Nack", "Extend", "Reserve"])
lasting = st.sampled_from([0.1, 1.0, 3.0])
happenings = st.one_of(
    st.tuples(st.just("put"), st.lists(kinds, min_size=1, max_size=6)),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.001, 0.3, 1.0, 5.0])),
    st.tuples(st.just("limit"), st.integers(1, 8)),
    st.tuples(st.just("fault"), st.builds(Fail, rpcs, st.integers(1, 3), passing)),
    st.tuples(st.just("fault"), st.builds(BlackHole, st.just(0.0), lasting)),
    st.tuples(st.just("fault"), st.builds(DropConnection, st.just(0.0))),
    st.tuples(st.just("steal"), st.integers(0, 3)),
    st.tuples(st.just("jump"), st.sampled_from([-3600.0, -2.0, 2.0, 3600.0])),
)
ends = st.sampled_from(["drain", "grace", "force", "cancel"])


class Handlers:
    """What handlers saw, to be compared with what the server saw."""

    def __init__(self) -> None:
        self.began: Counter[tuple[str, int]] = Counter()
        self.running: Counter[str] = Counter()
        self.cancelled: dict[tuple[str, int], str | None] = {}
        self.finished: set[tuple[str, int]] = set()
        self.beside: set[str] = set()
        """Jobs that two handlers have run at once."""

    async def __call__(self, payload: Payload | None, ctx: JobCtx) -> None:
        delivery = ctx.id, ctx.attempt
        self.began[delivery] += 1
        self.running[ctx.id] += 1
        if self.running[ctx.id] > 1:
            self.beside.add(ctx.id)
        try:
            await self.work(ctx)
        except trio.Cancelled:
            self.cancelled[delivery] = ctx.cancel_reason
            raise
        else:
            self.finished.add(delivery)
        finally:
            self.running[ctx.id] -= 1

    async def work(self, ctx: JobCtx) -> None:
        match ctx.job_type:
            case "slow":
                await trio.sleep(1.5)
            case "fail":
                raise ValueError("no")
            case "permanent":
                raise HandlerError.permanent("never")
            case "hang":
                await trio.sleep_forever()
            case "stubborn":
                with trio.CancelScope(shield=True):
                    await trio.sleep(LEASE * 2)


@given(st.lists(happenings, max_size=25), ends, st.booleans())
@settings(max_examples=60)
def test_a_worker_does_what_its_handlers_and_its_server_say(
    story: list[tuple[str, Any]], end: str, auto_extend: bool
) -> None:
    run_on_leaping_clock(lambda: live(story, end, auto_extend))


async def live(story: list[tuple[str, Any]], end: str, auto_extend: bool) -> None:
    handlers, recorder = Handlers(), Recorder()
    async with (
        open_fragile_server(CONFIG, recorder=recorder) as server,
        open_client(server.connect) as producer,
        open_fault_proxy(server.connect) as proxy,
        open_client(proxy.connect) as client,
    ):
        worker = worker_on(
            client, LEASE, max_in_flight=4, auto_extend=auto_extend, wait_timeout=0.5
        )
        for kind in KINDS:
            worker.handle(kind, handlers)
        highest = 4
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as workers:
                await workers.start(worker.run)
                for what, how in story:
                    if what == "put":
                        await enqueue(producer, *how)
                    elif what == "wait":
                        await trio.sleep(how)
                    elif what == "limit":
                        worker.max_in_flight = how
                        highest = max(highest, how)
                    elif what == "fault":
                        proxy.inject(how)
                        await trio.sleep(getattr(how, "seconds", 0))
                    elif what == "jump":
                        await server.jump_clock(how)
                    elif leased := recorder.jobs().leased:
                        with suppress(JobNotFoundError):  # it may be acked just now
                            await server.lose_lease(leased[how % len(leased)])
                    assert handlers.running.total() <= highest
                if end == "cancel":
                    scope.cancel()
                else:
                    worker.shutdown({"drain": None, "grace": 1, "force": 0}[end])
                if end == "drain":
                    # Handlers that hang keep a drain from its end: that is what grace is for.
                    await trio.sleep(60)
                    worker.shutdown(0)
        assert len(client._keeper) == 0
        assert handlers.running.total() == 0
        check_statistics(worker.statistics())
        robbed = any(what in ("steal", "jump") for what, _ in story)
        for job in recorder.jobs():
            check_job(job, handlers)
            if job.id in handlers.beside:
                assert robbed or job.job_type == "stubborn"
        assert max(handlers.began.values(), default=0) <= 1


def check_statistics(statistics: WorkerStatistics) -> None:
    assert (statistics.state, statistics.in_flight) == ("stopped", 0)
    assert (statistics.waiting, statistics.reporting, statistics.overdue) == (0, 0, 0)
    ended = statistics.acked + statistics.retried + statistics.dead_lettered
    ended += statistics.given_back + statistics.lost + statistics.unreported
    assert ended == statistics.received


def check_job(job: JobHistory, handlers: Handlers) -> None:
    reported = set()
    for event in job.events:
        delivery = job.id, event.attempt
        if event.kind == "acked":
            # Acked is what has finished, in time and well, and nothing else.
            assert delivery in handlers.finished
            assert job.job_type in ("ok", "slow", "stubborn")
            reported.add(delivery)
        elif event.kind == "nacked":
            reported.add(delivery)
            reason = event.reason or ""
            if reason == "never":
                assert job.job_type == "permanent"
            elif reason.startswith("no handler"):
                assert job.job_type == "nobody's"
            elif reason.startswith("interrupted"):
                assert event.seconds in (0, None)
            else:
                assert job.job_type == "fail"
                assert reason == "handler raised ValueError: no"
    for attempt in range(1, job.attempt + 1):
        reason = handlers.cancelled.get((job.id, attempt), "")
        assert reason is not None
        if reason == "lease lost":
            assert (job.id, attempt) not in reported
