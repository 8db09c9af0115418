"""Random jobs and what their handlers do: decided by the seed, the job and the attempt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Protocol, TypeAlias

import trio

from sepp_trio import (
    ClientError,
    EnqueueRequest,
    HandlerError,
    LeaseError,
    Payload,
    SeppClient,
)

from .truth import HandlerRun, Truth


class Ctx(Protocol):
    """What handlers need to know of their job."""

    @property
    def id(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def cancel_reason(self) -> str | None: ...
    async def extend(self, duration: float, /) -> object: ...


SimulatedHandler: TypeAlias = Callable[[Payload | None, Ctx], Awaitable[None]]

QUEUES = ("mail", "import", "slow lane")

# Of a hundred jobs. Types that only some workers know, that none knows, and that cannot be read
# are types of jobs; what the others do is decided anew for each attempt.
TYPES = (("plain", 88), ("limited", 5), ("rare", 4), ("nobody", 1), ("malformed", 2))
KINDS = (
    ("fast", 34),
    ("slow", 24),
    ("long", 6),
    ("retry", 5),
    ("retry after", 4),
    ("permanent", 3),
    ("raise", 4),
    ("group", 2),
    ("hang", 2),
    ("swallow", 3),
    ("shield", 3),
    ("extend", 4),
    ("ack", 2),
    ("own scope", 4),
)


def pick(dice: Random, choices: tuple[tuple[str, int], ...]) -> str:
    """One of weighted choices."""
    names, weights = zip(*choices, strict=True)
    return dice.choices(names, weights)[0]


def random_request(seed: int, number: int, now: datetime) -> EnqueueRequest:
    """Job number so-and-so of a seed."""
    dice = Random(f"job {seed} {number}")
    scheduled = None
    if dice.random() < 0.1:
        scheduled = now + timedelta(seconds=dice.expovariate(1 / 20))
    return EnqueueRequest(
        dice.choice(QUEUES).replace(" ", "-"),
        pick(dice, TYPES),
        Payload.json({"n": number}),
        idempotency_key=str(number),
        priority=dice.choice((None, 0, 5, 9)),
        max_attempts=dice.choice((1, 2, 3, 5, 8)),
        scheduled_at=None if scheduled is None else scheduled.astimezone(UTC),
        custom={"seed": seed} if dice.random() < 0.2 else {},
    )


class Handlers:
    """Makes the handler of a worker."""

    def __init__(self, seed: int, truth: Truth) -> None:
        self._seed = seed
        self._truth = truth

    def of(self, worker: str, client: SeppClient, lease: float) -> SimulatedHandler:
        """A handler that misbehaves at random, and writes down what becomes of it."""

        async def handler(payload: Payload | None, ctx: Ctx) -> None:
            story = self._truth.jobs[ctx.id]
            dice = Random(f"run {self._seed} {story.number} {ctx.attempt}")
            kind = pick(dice, KINDS)
            run = HandlerRun(ctx.id, ctx.attempt, worker, kind, trio.current_time())
            story.deliveries[ctx.attempt].runs.append(run)
            self._truth.counts[f"handler {kind}"] += 1
            self._truth.note(ctx.id, f"{worker}: attempt {ctx.attempt} runs, {kind}")
            try:
                await _behave(kind, dice, run, ctx, client, lease, self._truth)
                run.outcome = run.outcome or "returned"
            except BaseException as error:
                # A nursery may hand on the Cancelled of several tasks as a group.
                group = BaseExceptionGroup("", [error])
                if group.split(trio.Cancelled)[1] is None:
                    _saw_cancel(run, ctx)
                    run.outcome = "cancelled"
                else:
                    verdicts = group.subgroup(_is_permanent)
                    run.outcome = "failed" if verdicts is None else "permanent"
                raise
            finally:
                run.ended = trio.current_time()
                self._truth.note(
                    ctx.id, f"{worker}: attempt {ctx.attempt} ends, {run.outcome} {run.reason}"
                )

        return handler


def _is_permanent(error: BaseException) -> bool:
    return isinstance(error, HandlerError) and error.directive.kind == "dead_letter"


def _saw_cancel(run: HandlerRun, ctx: Ctx) -> None:
    if run.cancelled is None:
        run.cancelled = trio.current_time()
        run.reason = ctx.cancel_reason


async def _behave(
    kind: str,
    dice: Random,
    run: HandlerRun,
    ctx: Ctx,
    client: SeppClient,
    lease: float,
    truth: Truth,
) -> None:
    match kind:
        case "fast":
            if dice.random() < 0.5:
                await trio.lowlevel.checkpoint()
        case "slow":
            await trio.sleep(dice.expovariate(1 / 0.5))
        case "long":
            await trio.sleep(lease * dice.uniform(0.5, 3))
        case "retry":
            await trio.sleep(dice.random())
            raise HandlerError.retry("later")
        case "retry after":
            raise HandlerError.retry_after("in a while", dice.choice((0, 0.2, 3, 20)))
        case "permanent":
            await trio.sleep(dice.random())
            raise HandlerError.permanent("never")
        case "raise":
            await trio.sleep(dice.random() * 0.1)
            raise dice.choice((ValueError("x"), KeyError("y"), RuntimeError("z" * 1000)))
        case "group":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_fail_permanently)
                nursery.start_soon(trio.sleep_forever)
        case "hang":
            await trio.sleep(lease * 6)
            raise HandlerError.retry("hung")
        case "swallow":
            run.stubborn = True
            try:
                await trio.sleep(lease * dice.uniform(0.1, 3))
            except trio.Cancelled:
                _saw_cancel(run, ctx)
                with trio.CancelScope(shield=True):
                    await trio.sleep(lease * dice.random())
                if dice.random() < 0.5:
                    raise ValueError("after the cancel") from None
        case "shield":
            run.stubborn = True
            with trio.CancelScope(shield=True):
                await trio.sleep(lease * dice.uniform(0.1, 2))
        case "extend":
            for _ in range(dice.randrange(1, 4)):
                with suppress(LeaseError, ClientError):
                    await ctx.extend(lease * dice.uniform(1, 3))
                await trio.sleep(lease * dice.random())
        case "ack":
            await trio.sleep(dice.random())
            run.outcome = "acked"
            truth.counts[f"acked by handlers of {run.worker}"] += 1
            with suppress(LeaseError, ClientError):
                await client.ack(ctx)
        case "own scope":
            with trio.move_on_after(dice.random()):
                await trio.sleep(dice.random() * 2)


async def _fail_permanently() -> None:
    await trio.sleep(0.1)
    raise HandlerError.permanent("in a group")
