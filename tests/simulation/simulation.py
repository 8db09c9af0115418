"""A whole world from one number: server, processes, jobs and what goes wrong."""

from __future__ import annotations

import functools
import hashlib
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import trio
import trio._core._run
import trio.testing

from sepp_trio import ClientError, ServerInternalError, open_client
from sepp_trio.broker import BrokerConfig, StorageConfig
from sepp_trio.testing import (
    FaultPlan,
    FragileServer,
    Happening,
    open_fault_proxy,
    open_fragile_server,
    random_network_plan,
    random_server_plan,
)

from .checks import Judge
from .fleet import Process
from .jobs import Handlers, random_request
from .truth import RecordingEngine, Truth

_EPOCH_MS = 1_800_000_000_000
_JOBS_A_SECOND = 12
_SETTLE = 5 * 3600.0
"""Virtual seconds of calm after which a job that has not ended counts as lost: a server clock that
was set back by an hour lets scheduled jobs wait so much longer, each time."""


@dataclass(frozen=True)
class Weather:
    """How often things go wrong; seconds between faults of each network, and of the server, one
    in so many calls, seconds between the stops of a process."""

    network: float = 30.0
    server: float = 120.0
    calls: float = 150.0
    stops: float = 60.0

    @classmethod
    def of(cls, seed: int) -> Weather:
        """Every fourth seed is calm but for the stops; the others differ in kind."""
        return (
            cls(network=1e9, server=1e9, calls=1e9),
            cls(),
            cls(network=150, server=600, calls=1500),
            cls(network=8, server=40, calls=30, stops=30),
        )[seed % 4]


@dataclass
class Report:
    """What one seed brought."""

    seed: int
    jobs: int
    virtual_seconds: float = 0.0
    real_seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    figures: Counter[str] = field(default_factory=Counter)
    # Job (or "") and what is wrong.
    complaints: list[tuple[str, str]] = field(default_factory=list)
    plans: list[FaultPlan] = field(default_factory=list)
    digest: str = ""
    all_stories: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    happened: list[Happening] = field(default_factory=list)

    def failure(self, most: int = 3) -> str:
        """Why the seed failed, for people: the first complaints with their jobs' stories."""
        lines = [f"seed {self.seed}, {self.jobs} jobs: {len(self.complaints)} complaints"]
        for job_id, text in self.complaints[:most]:
            lines.append(f"- {job_id or 'process'}: {text}")
            lines += [f"    {at:10.3f}  {event}" for at, event in self.all_stories.get(job_id, ())]
        lines += [f"- {text}" for _, text in self.complaints[most : most + 10]]
        lines.append(f"plans, process by process, then the server's: {self.plans}")
        lines.append("faults:")
        lines += [
            f"    {item.at:10.3f} .. {item.until:10.3f} {item.fault} {item.effect}"
            for item in self.happened
        ]
        return "\n".join(lines)


def simulate(seed: int, jobs: int, *, processes: int = 6, weather: Weather | None = None) -> Report:
    """Run one seed to its end and judge it. The same seed gives the same run, event by event."""
    report = Report(seed, jobs)
    began = time.perf_counter()
    kept = random.getstate(), trio._core._run._r.getstate()
    kept_order = trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING
    random.seed(f"package {seed}")
    trio._core._run._r.seed(f"scheduler {seed}")
    trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    try:
        trio.run(
            _World(seed, jobs, processes, weather or Weather.of(seed), report).run,
            clock=trio.testing.MockClock(autojump_threshold=0),
        )
    finally:
        trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = kept_order  # type: ignore[misc]
        trio._core._run._r.setstate(kept[1])
        random.setstate(kept[0])
    report.real_seconds = time.perf_counter() - began
    return report


def on_leaping_clock(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Make a test out of an async function that runs on virtual time."""

    @functools.wraps(test)
    def run() -> None:
        trio.run(test, clock=trio.testing.MockClock(autojump_threshold=0))

    return run


class _World:
    def __init__(
        self, seed: int, jobs: int, processes: int, weather: Weather, report: Report
    ) -> None:
        self._seed = seed
        self._jobs = jobs
        self._processes = processes
        self._weather = weather
        self._report = report
        self._seconds = jobs / _JOBS_A_SECOND

    async def run(self) -> None:
        """Start everything, let it settle, judge it."""
        self._truth = truth = Truth(self._seed)
        servers: list[FragileServer] = []
        config = BrokerConfig(storage=StorageConfig(dead_letter_retention_ms=10**12))
        began = trio.current_time()
        tasks = trio.lowlevel.current_statistics().tasks_living
        async with open_fragile_server(
            config,
            epoch_ms=_EPOCH_MS,
            make_engine=lambda store, config: RecordingEngine(store, config, truth, servers),
        ) as server:
            servers.append(server)
            await self._live(server)
        left = trio.lowlevel.current_statistics().tasks_living - tasks
        if left:
            self._complain("", f"{left} tasks are left")
        self._report.virtual_seconds = trio.current_time() - began
        self._sum_up()

    async def _live(self, server: FragileServer) -> None:
        weather, seed, seconds = self._weather, self._seed, self._seconds
        server_plan = random_server_plan(seed, seconds=seconds, every=weather.server)
        handlers = Handlers(seed, self._truth)
        fleet = [
            Process(
                number,
                seed,
                server,
                self._truth,
                handlers,
                random_network_plan(
                    seed * 1000 + number,
                    seconds=seconds,
                    every=weather.network,
                    one_in=weather.calls,
                ),
                self._complain,
                stop_every=weather.stops,
            )
            for number in range(self._processes)
        ]
        self._report.plans = [*(process._plan for process in fleet), server_plan]
        async with (
            open_fault_proxy(
                server.connect, server_plan, server=_Controls(server, self._truth)
            ) as server_faults,
            trio.open_nursery() as nursery,
        ):
            nursery.start_soon(_watch_broker, server)
            for process in fleet:
                nursery.start_soon(process.run)
            await self._produce(server)
            for process in fleet:
                process.calm_down()
            await self._settled()
            nursery.cancel_scope.deadline = trio.current_time() + _SETTLE
            for process in fleet:
                process.finish()
            for process in fleet:
                await process.ended.wait()
            nursery.cancel_scope.cancel(reason="all processes have ended")
        if not all(process.ended.is_set() for process in fleet):
            self._complain("", "some worker did not stop")
        self._judge(fleet, server_faults.happened)
        await self._dead_letters(server)

    async def _produce(self, server: FragileServer) -> None:
        """Enqueue everything, by and by; what may not have arrived is sent again."""
        number, truth = 0, self._truth
        async with open_client(server.connect) as client:
            while number < self._jobs:
                size = min(random.randrange(1, 60), self._jobs - number)
                now = datetime.fromtimestamp(server.clock.now_ms() / 1000, UTC)
                batch = [random_request(self._seed, number + i, now) for i in range(size)]
                while True:
                    try:
                        await client.enqueue_batch(batch)
                        break
                    except ServerInternalError:
                        raise
                    except ClientError:
                        truth.counts["enqueues repeated"] += 1
                        await trio.sleep(0.5)
                number += size
                await trio.sleep(random.expovariate(_JOBS_A_SECOND / size))

    async def _settled(self) -> None:
        truth = self._truth
        with trio.move_on_after(_SETTLE):
            while truth.open:
                truth.changed = trio.Event()
                await truth.changed.wait()

    async def _dead_letters(self, server: FragileServer) -> None:
        """The broker's dead letters are the ones that the stories tell of."""
        found: Counter[str] = Counter()
        async with open_client(server.connect) as client:
            while records := await client.drain_dead_letters(max_records=256):
                found.update(str(record.job_id) for record in records)
        told = {
            story.job_id for story in self._truth.jobs.values() if story.end not in ("", "acked")
        }
        if set(found) != told or any(count > 1 for count in found.values()):
            self._complain("", f"{len(found)} dead letters, the stories tell of {len(told)}")
        assert server.broker is not None
        left = sum(server.broker.statistics().queues.values())
        if left != self._truth.open:
            self._complain("", f"{left} live jobs, the stories tell of {self._truth.open}")

    def _judge(self, fleet: list[Process], happened: list[Happening]) -> None:
        report = self._report
        judge = Judge(self._truth, fleet, happened, self._complain)
        judge.judge()
        report.figures = judge.figures
        report.happened = sorted(
            [
                *happened,
                *(item for p in fleet if p.proxy is not None for item in p.proxy.happened),
            ],
            key=lambda item: item.at,
        )
        report.faults = Counter(type(item.fault).__name__ for item in report.happened)

    def _complain(self, job_id: str, text: str) -> None:
        self._report.complaints.append((job_id, text))
        self._truth.note(job_id, f"WRONG: {text}")

    def _sum_up(self) -> None:
        report, truth = self._report, self._truth
        report.counts = truth.counts
        report.all_stories = {job_id: story.events for job_id, story in truth.jobs.items()}
        digest = hashlib.sha256()
        for story in truth.jobs.values():
            digest.update(repr((story.job_id, story.events)).encode())
        report.digest = digest.hexdigest()[:16]
        if len(truth.jobs) != self._jobs:
            self._complain("", f"{len(truth.jobs)} jobs were enqueued, not {self._jobs}")


async def _watch_broker(server: FragileServer) -> None:
    """A broker whose operations fail would make all else look wrong."""
    while True:
        await trio.sleep(5)
        if server.broker is not None and server.broker.statistics().committer.failed_batches:
            raise AssertionError("the broker fails: see what it logs")


class _Controls:
    """The server, for its plan; the stories are told when its clock is set."""

    def __init__(self, server: FragileServer, truth: Truth) -> None:
        self._server = server
        self._truth = truth

    async def restart(self, down: float, *, drain: bool) -> None:
        await self._server.restart(down, drain=drain)

    async def jump_clock(self, seconds: float) -> None:
        self._truth.jumped()
        await self._server.jump_clock(seconds)
