"""The processes of the simulation: workers on clients, each behind its own bad network."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import trio

from sepp_trio import ConnectError, SeppClient, Worker, open_client
from sepp_trio.testing import (
    FaultPlan,
    FaultProxy,
    FragileServer,
    ProxiedCall,
    open_fault_proxy,
)
from sepp_trio.wire import decoder_of, records

from .by_hand import ByHand
from .jobs import QUEUES, Handlers
from .truth import Truth

_REQUESTS = {
    "Ack": decoder_of(records.AckRequest),
    "Nack": decoder_of(records.NackRequest),
    "Extend": decoder_of(records.ExtendRequest),
}
_decode_reserve = decoder_of(records.ReserveRequest)
_decode_answer = decoder_of(records.ReserveResponse)
_decode_job = decoder_of(records.Job)

_TOLD = (5, 9)
"""NOT_FOUND, FAILED_PRECONDITION."""


class Watch:
    """Reads what passes between a process and the server."""

    def __init__(self, truth: Truth, complain: Callable[[str, str], None]) -> None:
        self._truth = truth
        self._complain = complain
        # Workers that may cancel their handlers; and whether the process was killed.
        self.forced: set[str] = set()
        self.dead = False

    def asked(self, call: ProxiedCall) -> None:
        """See :class:`Observer`."""
        self._truth.counts[f"call {call.rpc}"] += 1
        if call.rpc not in _REQUESTS:
            return
        request = _REQUESTS[call.rpc](call.request)
        delivery = self._truth.delivery(request.job_id, request.attempt)
        self._truth.note(
            request.job_id,
            f"{request.worker_id}: sends {call.rpc} of attempt {request.attempt}"
            f"{f', {call.fault}' if call.fault is not None else ''}",
        )
        if delivery is None:
            self._complain(request.job_id, f"{call.rpc} for a delivery that never was")
            return
        if call.fault is not None:
            delivery.call_faults.append((trio.current_time(), call.fault))
        delivery.settling |= call.rpc != "Extend"
        now = trio.current_time()
        # How long it may name a job that it cannot read, nobody can know.
        malformed = request.job_id in self._truth.malformed
        if delivery.told is not None and now > delivery.told:
            self._complain(
                request.job_id,
                f"{call.rpc} of attempt {request.attempt}, although it was over at "
                f"{delivery.told:.3f}",
            )
        elif now > delivery.promised + 1e-6 and not delivery.jumped and not malformed:
            self._complain(
                request.job_id,
                f"{call.rpc} of attempt {request.attempt} after the lease's end "
                f"{delivery.promised:.3f}",
            )

    def answered(self, call: ProxiedCall) -> None:
        """See :class:`Observer`."""
        now = trio.current_time()
        if call.rpc == "Reserve" and call.status == 0:
            worker = _decode_reserve(call.request).worker_id
            for raw in _decode_answer(call.reply).jobs:
                job = _decode_job(raw)
                delivery = self._truth.delivery(job.id, job.attempt)
                assert delivery is not None
                delivery.worker, delivery.arrived = worker, now
                if call.fault is not None:
                    delivery.call_faults.append((call.asked_at, call.fault))
                self._truth.note(job.id, f"{worker}: has attempt {job.attempt}")
        elif call.rpc in _REQUESTS:
            request = _REQUESTS[call.rpc](call.request)
            delivery = self._truth.delivery(request.job_id, request.attempt)
            if delivery is None or (call.rpc == "Extend" and delivery.settling):
                return
            settled = call.status == 0 and call.rpc != "Extend"
            if settled or call.status in _TOLD:
                delivery.told = min(now, delivery.told or now)

    def reset(self, call: ProxiedCall) -> None:
        """See :class:`Observer`."""
        self._truth.counts[f"reset {call.rpc}"] += 1
        if call.rpc == "Reserve":
            self._judge_reset(call)
            self.lost(call)  # if the answer was there, and held up by the plan

    def _judge_reset(self, call: ProxiedCall) -> None:
        """A reserve may be claiming: it is reset only by its deadline, or a forced stop, and
        by that not in its first half second."""
        request = _decode_reserve(call.request)
        assert request.wait_timeout is not None
        age = trio.current_time() - call.asked_at
        deadline = request.wait_timeout[0] + request.wait_timeout[1] / 1e9 + 9.9
        forced = request.worker_id in self.forced
        if age < deadline and not self.dead and (age < 0.5 or not forced):
            self._complain(
                "", f"{request.worker_id}: reset a reserve after {age:.3f} s, forced: {forced}"
            )

    def lost(self, call: ProxiedCall) -> None:
        """See :class:`Observer`."""
        if call.rpc == "Reserve" and call.status == 0:
            for raw in _decode_answer(call.reply).jobs:
                job = _decode_job(raw)
                delivery = self._truth.delivery(job.id, job.attempt)
                assert delivery is not None
                delivery.lost = True
                self._truth.note(job.id, f"attempt {job.attempt} lost on its way, {call.fault}")


class Process:
    """One process: it starts, works, is stopped in one way or another, and starts anew."""

    def __init__(
        self,
        number: int,
        seed: int,
        server: FragileServer,
        truth: Truth,
        handlers: Handlers,
        plan: FaultPlan,
        complain: Callable[[str, str], None],
        *,
        stop_every: float,
    ) -> None:
        self.number = number
        self.proxy: FaultProxy | None = None
        self.generation = 0
        self.crashes: list[tuple[str, float]] = []
        self._dice = Random(f"process {seed} {number}")
        self._server = server
        self._truth = truth
        self._handlers = handlers
        self._plan = plan
        self._complain = complain
        self._stop_every = stop_every
        self._watch = Watch(truth, complain)
        self.beating: dict[str, bool] = {}
        self._calm = trio.Event()
        self._all_done = trio.Event()
        self.ended = trio.Event()

    def calm_down(self) -> None:
        """No more stops from now on."""
        self._calm.set()

    def finish(self) -> None:
        """Drain, and do not start again."""
        self._all_done.set()

    async def run(self) -> None:
        """Live until :meth:`finish`."""
        async with open_fault_proxy(
            self._server.connect, self._plan, observer=self._watch
        ) as self.proxy:
            while not self._all_done.is_set():
                self.generation += 1
                self._watch.dead = False
                try:
                    await self._live()
                except ConnectError:
                    self._truth.counts["clients that could not connect"] += 1
                await trio.sleep(self._dice.uniform(0.1, 3))
        self.ended.set()

    async def _connect(self) -> trio.abc.Stream:
        if self._watch.dead or self.proxy is None:
            raise ConnectionResetError("the process is dead")
        return await self.proxy.connect()

    async def _live(self) -> None:
        with trio.CancelScope() as process_scope:
            async with open_client(self._connect) as client:
                workers = [
                    self._make_worker(client, index)
                    for index in range(self._dice.choice((1, 1, 2)))
                ]
                async with trio.open_nursery() as nursery:
                    for worker in workers:
                        nursery.start_soon(self._run_worker, worker)
                    nursery.start_soon(self._rule, workers, nursery.cancel_scope, process_scope)
                await self._check_client(client)

    async def _live_by_hand(self, client: SeppClient, process_scope: trio.CancelScope) -> None:
        """Without a worker: only drained, or killed. What a cancelled body had is not given
        back, so that the other stops would prove nothing."""
        dice = self._dice
        lease = round(dice.choice((2, 5, 10)) * dice.uniform(0.8, 1.2), 3)
        name = f"p{self.number}.{self.generation}.h"
        self.beating[name] = dice.random() < 0.7
        self._truth.counts["consumers by hand"] += 1
        consumer = ByHand(
            client,
            [queue.replace(" ", "-") for queue in QUEUES],
            lease,
            self._handlers.of(name, client, lease),
            worker_id=name,
            auto_extend=self.beating[name],
            max_jobs=dice.randrange(1, 5),
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer.run)
            with trio.move_on_after(dice.expovariate(1 / self._stop_every)) as scope:
                await self._all_done.wait()
            if scope.cancelled_caught and dice.random() < 0.3 and not self._calm.is_set():
                self._truth.counts["stop: crashed"] += 1
                self._crash([name])
                process_scope.cancel(reason="the simulation kills the process")
            consumer.shutdown()
        for delivery in self._truth.leased_to(name):
            delivery.left_by_return = True
        await self._check_client(client)

    def _make_worker(self, client: SeppClient, index: int) -> Worker:
        dice = self._dice
        lease = round(dice.choice((2, 5, 10, 20)) * dice.uniform(0.8, 1.2), 3)
        name = f"p{self.number}.{self.generation}.{index}"
        grace = dice.choice((None, None, lease))
        worker = Worker(
            client,
            dice.sample([queue.replace(" ", "-") for queue in QUEUES], len(QUEUES)),
            lease,
            wait_timeout=round(dice.uniform(0.5, 5), 3),
            max_jobs=dice.choice((None, None, 1, 4)),
            max_in_flight=dice.randrange(1, 24),
            auto_extend=dice.random() < 0.75,
            auto_extend_interval=lease / 4 if dice.random() < 0.1 else None,
            worker_id=name,
            handler_timeout=lease * 4 if dice.random() < 0.3 else None,
            shutdown_grace=grace,
        )
        self.beating[name] = worker._options.auto_extend
        if grace is not None:
            self._watch.forced.add(name)
        handler = self._handlers.of(name, client, lease)
        worker.handle("plain", handler, timeout=lease * 5 if dice.random() < 0.2 else None)
        worker.handle("limited", handler, max_in_flight=dice.choice((1, 2)))
        worker.handle("malformed", handler)
        if dice.random() < 0.6:
            worker.handle("rare", handler)
        return worker

    async def _run_worker(self, worker: Worker) -> None:
        try:
            await worker.run()
        except Exception as error:
            self._complain("", f"{worker.worker_id}: run raised {error!r}")
        finally:
            self._check_worker(worker)
        self._truth.counts["workers that returned"] += 1

    async def _rule(
        self, workers: list[Worker], scope: trio.CancelScope, process_scope: trio.CancelScope
    ) -> None:
        dice, counts = self._dice, self._truth.counts
        stop_at = trio.current_time() + dice.expovariate(1 / self._stop_every)
        while not self._calm.is_set():
            with trio.move_on_at(min(stop_at, trio.current_time() + dice.uniform(1, 20))):
                await self._calm.wait()
                break
            if trio.current_time() < stop_at:
                dice.choice(workers).max_in_flight = dice.randrange(1, 24)
                counts["limits changed"] += 1
                continue
            how = dice.randrange(6)
            if how > 1:
                self._watch.forced.update(worker.worker_id for worker in workers)
            match how:
                case 0 | 1:
                    counts["stop: drained"] += 1
                    for worker in workers:
                        worker.shutdown()
                case 2:
                    counts["stop: with grace"] += 1
                    for worker in workers:
                        worker.shutdown(grace=dice.uniform(0.1, 5))
                case 3:
                    counts["stop: forced"] += 1
                    for worker in workers:
                        worker.shutdown(grace=0)
                case 4:
                    counts["stop: cancelled"] += 1
                    scope.cancel(reason="the simulation cancels the workers")
                case _:
                    counts["stop: crashed"] += 1
                    self._crash([worker.worker_id for worker in workers])
                    process_scope.cancel(reason="the simulation kills the process")
            return
        await self._all_done.wait()
        for worker in workers:
            worker.shutdown()

    def _crash(self, names: list[str]) -> None:
        """As good as a kill: nothing reaches the server any more."""
        self._watch.dead = True
        assert self.proxy is not None
        self.proxy.drop_connections()
        self.crashes += [(name, trio.current_time()) for name in names]

    # ---- what must hold when they are through ----

    def _check_worker(self, worker: Worker) -> None:
        name = worker.worker_id
        statistics = worker.statistics()
        left = (statistics.in_flight, statistics.waiting, statistics.reporting, statistics.overdue)
        if any(left):
            self._complain("", f"{name}: returned with {statistics}")
        if self._watch.dead:
            return
        told = (
            statistics.acked
            + statistics.retried
            + statistics.dead_lettered
            + statistics.given_back
            + statistics.lost
            + statistics.unreported
        )
        # Those that their handler has acked by itself are in none of these.
        by_themselves = self._truth.counts[f"acked by handlers of {name}"]
        if not told <= statistics.received <= told + by_themselves:
            self._complain("", f"{name}: {told} jobs are accounted for: {statistics}")
        for delivery in self._truth.leased_to(name):
            self._truth.note(delivery.job_id, f"{name}: returned, attempt {delivery.attempt} left")
            delivery.left_by_return = True

    async def _check_client(self, client: SeppClient) -> None:
        """Some time after the workers, everything of theirs has come back."""
        await trio.sleep(75)  # longer than any lease, and any delay of a plan
        statistics = client.statistics()
        keeper = client._keeper
        if statistics.calls_open or statistics.calls_waiting or len(keeper):
            self._complain("", f"process {self.number}: left {statistics}, {len(keeper)} leases")
