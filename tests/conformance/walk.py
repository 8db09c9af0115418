"""A random walk that asks two servers for the same and compares every answer.

What may differ, and why; everything else is a fault:

- ids: compared by the order in which they were given out;
- clock readings: each is compared with the time at which this process asked for what it dates;
- `server_version`, and the words of messages: not part of the contract;
- what is asked while something ends (timers.py): such an answer is not compared, and the walk
  must begin anew on new servers. It keeps away from those moments, so this takes a stalled machine;
- the order of jobs of one queue, priority and millisecond, and of dead letters of one millisecond:
  the real server's depends on their ids. The walk makes none of either: jobs of one request differ
  in queue or priority, and leases that may end in a dead letter end at times of their own.
"""

from __future__ import annotations

import contextlib
import random
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from tests.conformance.bad_requests import BAD
from tests.conformance.sides import without_times
from tests.conformance.timers import LONGEST, Timers
from tests.conformance.wire import NOBODY, RPCS, batch, new_job, pb, request_class, reserve_request

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from sepp_trio.broker import BrokerConfig
    from tests.conformance.sides import Side

QUEUES = "abcd"
# Two requests never share a millisecond.
APART = 0.0015
FAR = 200.0


class Stalled(Exception):
    """An operation took so long that its answers cannot be compared."""


class Difference(AssertionError):
    """The two servers gave different answers."""


@dataclass(frozen=True)
class Held:
    """A lease that was handed out."""

    number: int
    attempt: int
    queue: str
    last: bool

    @property
    def parts(self) -> list[Hashable]:
        """What the end of this lease has a say in."""
        parts: list[Hashable] = [("job", self.number), ("ready", self.queue)]
        if self.last:
            parts += [("depth", self.queue), "dead", "order"]
        return parts


class Walk:
    """One walk over two servers that were started empty with the same configuration."""

    def __init__(self, dice: random.Random, config: BrokerConfig, sides: tuple[Side, Side]) -> None:
        self.dice = dice
        self.counts: dict[str, int] = {}
        self._config = config
        self._sides = sides
        self._timers = Timers()
        self._held: list[Held] = []
        self._jobs: dict[int, Any] = {}
        self._enqueued: dict[str, tuple[float, float]] = {}
        self._history: list[str] = []
        self._round = 0
        # When the latest call was made, and when both servers had answered it.
        self._asked = self._answered = 0.0

    def step(self) -> None:
        """One operation.

        Raises:
            Difference: with the operations that led to it.
            Stalled: the machine was too slow for it; the walk cannot go on.
        """
        self._round += 1
        kinds: list[tuple[Callable[[], None], int]] = [
            (self._enqueue, 310),
            (self._reserve, 270),
            (self._settle, 330),
            (self._drain, 40),
            (self._bad, 30),
            (self._info, 5),
            (self._pause, 15),
        ]
        (kind,) = self.dice.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])
        kind()
        time.sleep(APART)

    # ---- Asking both ----

    def _both(
        self,
        rpc: str,
        request: Callable[[Side], Any],
        parts: Iterable[Hashable] = (),
        *,
        lease: float = 0.0,
    ) -> Any:
        """The answer that both give; `parts` is what it depends on."""
        parts = list(parts)
        self._timers.wait_for(parts)
        wanted: list[bytes] = []
        for side in self._sides:
            each = request(side)
            wanted.append(each if isinstance(each, bytes) else each.SerializeToString())
        self._asked = time.time()
        calls = [side.ask(rpc, each) for side, each in zip(self._sides, wanted, strict=True)]
        answers = [side.answer(rpc, call) for side, call in zip(self._sides, calls, strict=True)]
        self._answered = time.time()
        if self._timers.in_the_way(parts, self._asked, self._answered):
            raise Stalled
        return self._same(rpc, wanted[0], answers, lease)

    def _same(self, rpc: str, request: bytes, answers: list[Any], lease: float) -> Any:
        within = {**self._enqueued, "now": (self._asked, self._answered)}
        within["lease_expires_at"] = self._in(lease)
        try:
            first, second = (without_times(rpc, answer, within) for answer in answers)
        except AssertionError as error:
            first, second = str(error), "as it should be"
        asked = str(request)
        if rpc in RPCS:
            with contextlib.suppress(DecodeError):  # one of the bad ones
                asked = str(request_class(rpc).FromString(request))
        asked = self._sides[0].with_numbers(asked)
        said = " ".join(f"{rpc} {asked} -> {first}".split())
        self._history.append(f"{self._round} at {self._asked:.3f}: {said}")
        if first != second:
            raise Difference(self._story(str(first), str(second)))
        outcome = first if isinstance(first, str) else "OK"
        self.counts[f"{rpc} {outcome}"] = self.counts.get(f"{rpc} {outcome}", 0) + 1
        return first

    def _story(self, first: str, second: str) -> str:
        """What the two said, and what was asked before: lately, or about what they differ in."""
        numbers = re.findall(r"#\d+", first), re.findall(r"#\d+", second)
        about = [f'"{number}"' for number in set(numbers[0]) ^ set(numbers[1])]
        lines = self._history[:-15]
        lines = [line for line in lines if any(number in line for number in about)]
        return "\n".join(
            [*lines, *self._history[-15:], f"but the other: {' '.join(second.split())}"]
        )

    def _in(self, seconds: float) -> tuple[float, float]:
        """When something ends that lasts so long from the latest call on."""
        return self._asked + seconds, self._answered + seconds

    def _ends(self, seconds: float, *parts: Hashable) -> None:
        if seconds < FAR:
            first, last = self._in(seconds)
            if "order" in parts and self._timers.in_the_way(["order"], first, last):
                raise Stalled
            self._timers.add(first, last, *parts)

    # ---- Enqueue ----

    def _enqueue(self) -> None:
        pick, chance = self.dice.choice, self.dice.random
        jobs = []
        for queue in self.dice.sample(QUEUES, pick([1, 1, 1, 2, 3])):
            if chance() < 0.1:
                high, low = self.dice.sample(range(10), 2)
                jobs += [self._job(queue, high), self._job(queue, low)]
            else:
                jobs.append(self._job(queue, None))
        if chance() < 0.02:
            jobs = [self._job("ghost", None)]
        parts: list[Hashable] = [("depth", job.queue) for job in jobs]
        parts += [("key", job.queue, job.idempotency_key) for job in jobs]
        rpc = pick(["EnqueueBatch", "EnqueueBatch", "EnqueueAtomic"])
        answer = self._both(rpc, lambda _: batch(*jobs), parts)
        if rpc == "EnqueueBatch":
            results = [result.success for result in answer.results]
        else:
            results = list(answer.success.responses)
        for job, result in zip(jobs, results, strict=bool(results)):
            if result.job_id and not result.deduplicated:
                self._inserted(job, result.job_id)

    def _inserted(self, job: Any, number: str) -> None:
        self._enqueued[number] = self._in(0)
        settings = self._config.settings_of(job.queue)
        if job.HasField("idempotency_key"):
            key = ("key", job.queue, job.idempotency_key)
            self._ends(settings.dedup_window_ms / 1000, key)
        due = job.scheduled_at.seconds + job.scheduled_at.nanos / 1e9
        if self._asked < due < self._asked + FAR:
            # The clocks of the servers need not be as exact as ours.
            self._timers.add(due - 0.005, due + 0.020, ("ready", job.queue))

    def _job(self, queue: str, priority: int | None) -> Any:
        pick, chance = self.dice.choice, self.dice.random
        job = new_job(queue, pick("tuv" if chance() < 0.2 else "tu"))
        if priority is not None:
            job.priority = priority
        elif chance() < 0.4:
            job.priority = pick([0, 3, 9])
        if chance() < 0.4:
            job.max_attempts = pick([1, 2, 4, 9])
        if chance() < 0.25:
            job.idempotency_key = pick("klmnop")
        if chance() < 0.3:
            job.payload.data = b"x" * self.dice.randint(1, 9)
            job.payload.encoding = pick(["raw", "raw", "json"])
        if chance() < 0.2:
            for name in self.dice.sample("klmn", pick([1, 1, 2, 3])):
                job.custom[name].int_value = self._round
        if chance() < 0.1:
            job.trace_context.traceparent = pick(["p", "00-1-2-3"])
        if chance() < 0.15:
            self._schedule(job)
        if chance() < 0.06:
            self._spoil(job)
        return job

    def _schedule(self, job: Any) -> None:
        now = time.time()
        near = round((now + self.dice.uniform(0.1, 1.0)) * 1000)
        at = self.dice.choice([-(2**40), 1000, int(now) + 86_400, 2**33, None, None, None])
        job.scheduled_at.seconds = near // 1000 if at is None else at
        job.scheduled_at.nanos = near % 1000 * 1_000_000 if at is None else 999_999

    def _spoil(self, job: Any) -> None:
        spoils: list[Callable[[], object]] = [
            lambda: setattr(job, "queue", self.dice.choice(["", "..", "a/b", "q" * 513])),
            lambda: setattr(job, "job_type", self.dice.choice(["", "t" * 257])),
            lambda: setattr(job, "priority", 10),
            lambda: setattr(job, "max_attempts", 0),
            lambda: setattr(job, "idempotency_key", self.dice.choice(["", "k" * 257])),
            lambda: setattr(job.trace_context, "traceparent", ""),
            lambda: setattr(job.payload, "data", b""),
            lambda: job.custom[""].SetInParent(),
            lambda: job.custom["unset"].SetInParent(),
        ]
        self.dice.choice(spoils)()

    # ---- Reserve ----

    def _reserve(self) -> None:
        pick = self.dice.choice
        queues = [pick(QUEUES) for _ in range(pick([1, 2, 3, 4]))]
        parts: list[Hashable] = [("ready", queue) for queue in queues]
        most = pick([None, None, 1, 2, 5, 9])
        fields = {} if most is None else {"max_jobs": most}
        if self.dice.random() < 0.03:
            answer, lease = self._reserve_with_wait(queues, parts, fields), FAR
        else:
            # Only one job at a time gets a lease that ends soon, see above.
            short = most in (None, 1) and self.dice.random() < 0.5
            lease = self._soon(parts) if short else FAR
            request = reserve_request(*queues, lease=lease, **fields)
            answer = self._both("Reserve", lambda _: request, parts, lease=lease)
        for job in answer.jobs if not isinstance(answer, str) else ():
            self._jobs[int(job.id[1:])] = job
            held = self._lease_of(int(job.id[1:]), job.attempt)
            self._held.append(held)
            self._lease_ends(held, lease)
        del self._held[:-20]

    def _lease_of(self, number: int, attempt: int) -> Held:
        job = self._jobs.get(number)
        if job is None:  # never handed out: nothing can be done to it
            return Held(number, attempt, "", last=True)
        return Held(number, attempt, job.queue, last=attempt >= job.max_attempts)

    def _reserve_with_wait(self, queues: list[str], parts: list[Hashable], fields: Any) -> Any:
        """A reserve that waits: for nothing, or for the one job that may become ready meanwhile."""
        wait = 0.15
        self._timers.wait_for(parts)
        now = time.time()
        ends = self._timers.in_the_way(parts, now, now + wait + 2 * LONGEST)
        if len(ends) > 1 or any(end.last > now + wait - LONGEST for end in ends):
            wait = 0.0
        request = reserve_request(*queues, lease=FAR, wait=wait, **fields)
        # Not "in the way" of this one, but what it is about.
        answer = self._both("Reserve", lambda _: request, lease=FAR)
        if self._answered - self._asked > wait + LONGEST:
            raise Stalled
        return answer

    def _soon(self, parts: list[Hashable]) -> float:
        """How long a lease lasts that is asked for next and ends at a time of its own."""
        self._timers.wait_for(parts)
        now = time.time()
        end = self._timers.free_moment(now + self.dice.uniform(0.15, 1.2), ["order"])
        return round(end - now, 3)

    def _lease_ends(self, held: Held, lease: float) -> None:
        if lease < FAR:
            self._ends(lease, *held.parts)
            if held.last:
                self._ends(lease + self._retention, "dead")

    @property
    def _retention(self) -> float:
        return self._config.storage.dead_letter_retention_ms / 1000

    # ---- Ack, nack, extend ----

    def _settle(self) -> None:
        pick, chance = self.dice.choice, self.dice.random
        if self._held and chance() < 0.9:
            held = pick(self._held)
        else:
            known = len(self._sides[0].ids)
            number = self.dice.randrange(known) if known and chance() < 0.9 else -1
            held = self._lease_of(number, pick([1, 2, 3]))
        if chance() < 0.1:
            held = self._lease_of(held.number, max(1, held.attempt + pick([-1, 1])))
        rpc = pick(["Ack", "Ack", "Nack", "Nack", "Extend"])
        request = request_class(rpc)(attempt=held.attempt)
        if chance() < 0.3:
            request.worker_id = "worker"
        # A nack may bury the job: in which order, another lease's end would decide.
        parts: list[Hashable] = [("job", held.number), "order"]
        lease = FAR
        if rpc == "Extend":
            lease = self._soon(parts) if chance() < 0.4 else FAR
            request.lease_duration.FromMilliseconds(round(lease * 1000))
        elif rpc == "Nack":
            self._strategy(request)

        def of(side: Side) -> Any:
            request.job_id = NOBODY if held.number < 0 else side.ids[held.number]
            return request

        answer = self._both(rpc, of, parts, lease=lease)
        if isinstance(answer, str):
            return
        if rpc == "Extend":
            self._lease_ends(held, lease)
            return
        self._held = [other for other in self._held if other.number != held.number]
        if rpc == "Nack":
            self._nacked(held, request, answer)

    def _strategy(self, request: Any) -> None:
        pick = self.dice.choice
        strategy = pick(["", "default", "default", "now", "now", "soon", "later", "dead_letter"])
        if strategy == "soon":
            request.retry.delay.FromMilliseconds(self.dice.randint(100, 900))
        elif strategy == "later":
            request.retry.delay.seconds = 1000
        elif strategy == "now":
            request.retry.delay.nanos = pick([0, 999_999])
        elif strategy:
            getattr(request.retry, strategy).SetInParent()
        if self.dice.random() < 0.5:
            request.reason = pick(["", "one", "two"])

    def _nacked(self, held: Held, request: Any, answer: Any) -> None:
        if answer.dead_lettered:
            self._ends(self._retention, "dead")
            return
        settings = self._config.settings_of(held.queue)
        horizon = settings.max_schedule_horizon_ms
        if request.retry.HasField("delay"):
            longest = min(request.retry.delay.ToMilliseconds(), horizon)
            shortest = longest
        else:
            growth = 2 ** (held.attempt - 1) if settings.retry_backoff == "exponential" else 1
            longest = min(settings.retry_delay_ms * growth, settings.retry_delay_max_ms, horizon)
            shortest = longest - longest // 4  # the jitter depends on the id
        if longest and shortest < FAR * 1000:
            first, last = self._asked + shortest / 1000, self._answered + longest / 1000
            self._timers.add(first, last, ("ready", held.queue))

    # ---- The rest ----

    def _drain(self) -> None:
        pick = self.dice.choice
        request = pb.DrainDeadLettersRequest()
        if self.dice.random() < 0.8:
            request.max = pick([1, 2, 9, 300])
        if self.dice.random() < 0.5:
            request.queue = pick([*QUEUES, "ghost"])
        self._both("DrainDeadLetters", lambda _: request, ["dead", "order"])

    def _bad(self) -> None:
        rpc, request = self.dice.choice(BAD)
        assert isinstance(self._both(rpc, lambda _: request), str), "it was meant to be refused"

    def _info(self) -> None:
        self._both("GetServerInfo", lambda _: b"")

    def _pause(self) -> None:
        time.sleep(self.dice.uniform(0.05, 0.6))
