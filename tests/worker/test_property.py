"""One worker against a model: any list of things that happen, in any order."""

from __future__ import annotations

from collections import Counter
from typing import Any

import trio
import trio.testing
from grpclib.const import Status
from hypothesis import given, settings
from hypothesis import strategies as st

from sepp_trio import HandlerError, JobCtx, Payload
from tests.worker.helpers import Sepp, worker_on

LEASE = 4.0

kinds = st.sampled_from(["ok", "slow", "fail", "permanent", "hang", "stubborn", "nobody's"])
passing = st.sampled_from([Status.UNAVAILABLE, Status.INTERNAL, Status.DEADLINE_EXCEEDED])
final = st.sampled_from([Status.NOT_FOUND, Status.FAILED_PRECONDITION])
happenings = st.one_of(
    st.tuples(st.just("put"), st.lists(kinds, min_size=1, max_size=6)),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.001, 0.3, 1.0, 5.0])),
    st.tuples(st.just("limit"), st.integers(1, 8)),
    st.tuples(
        st.just("fail"),
        st.tuples(
            st.sampled_from(["Ack", "Nack", "Extend", "Reserve"]), st.lists(passing, max_size=3)
        ),
    ),
    st.tuples(st.just("steal"), st.tuples(st.sampled_from(["Ack", "Nack", "Extend"]), final)),
    st.tuples(st.just("freeze"), st.sampled_from([0.1, 1.0, 3.0])),
    st.tuples(st.just("jump"), st.sampled_from([-3600.0, -2.0, 2.0, 3600.0])),
)
ends = st.sampled_from(["drain", "grace", "force", "cancel"])


class Model:
    """What handlers saw, to be compared with what the server saw."""

    def __init__(self) -> None:
        self.began: Counter[str] = Counter()
        self.running: set[str] = set()
        self.most = 0
        self.cancelled: dict[str, str | None] = {}
        self.finished: set[str] = set()

    async def __call__(self, payload: Payload | None, ctx: JobCtx) -> None:
        self.began[ctx.id] += 1
        self.running.add(ctx.id)
        self.most = max(self.most, len(self.running))
        try:
            await self.work(ctx)
        except trio.Cancelled:
            self.cancelled[ctx.id] = ctx.cancel_reason
            raise
        else:
            self.finished.add(ctx.id)
        finally:
            self.running.remove(ctx.id)

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
def test_a_worker_does_what_the_model_says(
    story: list[tuple[str, Any]], end: str, auto_extend: bool
) -> None:
    trio.run(live, story, end, auto_extend, clock=trio.testing.MockClock(autojump_threshold=0))


async def live(story: list[tuple[str, Any]], end: str, auto_extend: bool) -> None:
    model = Model()
    async with trio.open_nursery() as nursery:
        sepp = Sepp(nursery)
        async with sepp.client() as client:
            worker = worker_on(
                client, LEASE, max_in_flight=4, auto_extend=auto_extend, wait_timeout=0.5
            )
            for kind in ("ok", "slow", "fail", "permanent", "hang", "stubborn"):
                worker.handle(kind, model)
            types: dict[str, str] = {}
            highest = 4
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as workers:
                    await workers.start(worker.run)
                    for what, how in story:
                        if what == "put":
                            types.update(zip(sepp.put(*how), how, strict=True))
                        elif what == "wait":
                            await trio.sleep(how)
                        elif what == "limit":
                            worker.max_in_flight = how
                            highest = max(highest, how)
                        elif what == "fail":
                            sepp.fail(how[0], *how[1])
                        elif what == "steal":
                            sepp.fail(*how)
                        elif what == "jump":
                            sepp.ahead += how
                        else:
                            for link in sepp.links:
                                link.freeze()
                            await trio.sleep(how)
                            for link in sepp.links:
                                link.thaw()
                        assert len(model.running) <= highest
                    if end == "cancel":
                        scope.cancel()
                    worker.shutdown({"drain": None, "grace": 1, "force": 0}.get(end))
                    if end == "drain":
                        # Handlers that hang keep a drain from its end: that is what grace is for.
                        await trio.sleep(60)
                        worker.shutdown(0)
            check(sepp, model, worker.statistics(), types)
            assert len(client._keeper) == 0
        nursery.cancel_scope.cancel()


def check(sepp: Sepp, model: Model, statistics: Any, types: dict[str, str]) -> None:
    assert model.running == set()
    assert set(model.began.values()) <= {1}  # the server gave each job once
    assert (statistics.state, statistics.in_flight) == ("stopped", 0)
    assert (statistics.waiting, statistics.reporting, statistics.overdue) == (0, 0, 0)
    acked, nacked = set(sepp.acks), {nack.job_id for nack in sepp.nacks}
    assert not acked & nacked
    assert len(sepp.nacks) == len(nacked)
    for job_id in acked:
        # Acked is what has finished, in time and well, and nothing else.
        assert job_id in model.finished
        assert types[job_id] in ("ok", "slow", "stubborn")
    for nack in sepp.nacks:
        kind = types[nack.job_id]
        assert nack.retry is not None
        if nack.retry.dead_letter is not None:
            assert kind == "permanent"
        elif nack.reason and nack.reason.startswith("no handler"):
            assert kind == "nobody's"
        elif nack.reason and nack.reason.startswith("interrupted"):
            assert nack.retry.delay == (0, 0)
        else:
            assert kind == "fail"
    for job_id, reason in model.cancelled.items():
        assert reason is not None
        if reason == "lease lost":
            assert job_id not in acked | nacked
    total = statistics.acked + statistics.retried + statistics.dead_lettered
    total += statistics.given_back + statistics.lost + statistics.unreported
    assert total == statistics.received
