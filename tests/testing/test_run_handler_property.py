"""Whatever goes wrong, ``run_handler`` gives the outcome that the server's history tells, in time,
and leaves nothing behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import pytest
import trio
import trio.testing
from hypothesis import event, given
from hypothesis import strategies as st

from sepp_trio import HandlerError, JobCtx, LeaseError, Payload, SeppError
from sepp_trio.testing import (
    Acked,
    Answer,
    Fault,
    FaultPlan,
    LeaseLost,
    Outcome,
    Retried,
    assert_no_leaks,
    run_handler,
)
from sepp_trio.testing.strategies import fault_plans

_KINDS = [kind for kind in get_args(Fault) if kind is not Answer]


@dataclass(frozen=True)
class Script:
    """What a handler does: extends and sleeps, then ends in its own way."""

    steps: tuple[tuple[Literal["sleep", "extend", "shielded"], float], ...]
    end: Literal["return", "retry", "later", "reject", "crash"]
    stubborn: bool

    async def run(self, payload: Payload | None, ctx: JobCtx) -> None:
        """The handler."""
        for kind, seconds in self.steps:
            try:
                if kind == "extend":
                    await ctx.extend(seconds)
                else:
                    with trio.CancelScope(shield=kind == "shielded"):
                        await trio.sleep(seconds)
            except (LeaseError, SeppError):
                if not self.stubborn:
                    raise
        match self.end:
            case "retry":
                raise HandlerError.retry("again")
            case "later":
                raise HandlerError.retry_after("later", 60)
            case "reject":
                raise HandlerError.permanent("never")
            case "crash":
                raise ValueError("crash")


SCRIPTS = st.builds(
    Script,
    st.lists(
        st.tuples(
            st.sampled_from(["sleep", "extend", "shielded"]),
            st.sampled_from([0.01, 1.0, 9.0, 40.0]),
        ),
        max_size=5,
    ).map(tuple),
    st.sampled_from(["return", "retry", "later", "reject", "crash"]),
    st.booleans(),
)


def check(outcome: Outcome, script: Script, attempt: int) -> None:
    """The outcome is one that this script and the job's history allow."""
    assert outcome.attempt >= attempt
    kinds = [event.kind for event in outcome.events if event.attempt == outcome.attempt]
    assert len(outcome.extends) <= kinds.count("extended"), "the plan extends, too"
    if isinstance(outcome, LeaseLost):
        assert outcome.reason
        return
    assert kinds.count("acked") + kinds.count("nacked") <= 1
    if isinstance(outcome, Acked):
        assert kinds[-1] == "acked"
        assert (outcome.error, outcome.cancel_reason) == (None, None)
        assert script.end == "return"
    elif isinstance(outcome, Retried):
        assert kinds[-1] in ("nacked", "ready")
        assert script.end != "reject" or outcome.error is not None
        assert outcome.delay in ((60,) if outcome.reason == "later" else (0,))
    elif outcome.duration is None:
        assert kinds[-2:] == ["expired", "dead-lettered"]
    else:
        assert kinds[-2:] == ["nacked", "dead-lettered"]


async def run(script: Script, plan: FaultPlan, attempt: int, *, auto_extend: bool) -> None:
    runs: list[int] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        runs.append(ctx.attempt)
        await script.run(payload, ctx)

    async with assert_no_leaks():
        outcome = await run_handler(
            handler,
            attempt=attempt,
            lease_duration=30,
            auto_extend=auto_extend,
            handler_timeout=70,
            faults=plan,
        )
        event(f"{type(outcome).__name__} {'after' if outcome.happened else 'without'} faults")
        check(outcome, script, attempt)
        assert runs == ([] if outcome.duration is None else [outcome.attempt])


@pytest.mark.slow
@given(SCRIPTS, fault_plans(kinds=_KINDS), st.integers(1, 3), st.booleans())
def test_whatever_goes_wrong_the_outcome_is_told(
    script: Script, plan: FaultPlan, attempt: int, auto_extend: bool
) -> None:
    clock = trio.testing.MockClock(autojump_threshold=0)
    trio.run(lambda: run(script, plan, attempt, auto_extend=auto_extend), clock=clock)
