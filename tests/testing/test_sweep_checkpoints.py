"""The sweep's checkpoints are all that there are."""

from __future__ import annotations

from collections import Counter
from itertools import count, pairwise
from typing import Any, get_args

import pytest
import trio
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sepp_trio import JobCtx, Payload
from sepp_trio.testing import (
    Cause,
    SweepFailure,
    SweepReport,
    SweepRun,
    assert_no_leaks,
    cancellation_sweep,
)
from sepp_trio.testing._sweep._order import SteadyOrder
from sepp_trio.testing._sweep._tree import Tree
from tests.testing.programs import (
    MISTAKEN_PROGRAMS,
    PLAIN_PROGRAMS,
    PROGRAMS,
    Bounded,
    Interpreter,
    Nursery,
    Program,
    Send,
    Shielded,
    Sleep,
    Step,
    Swallow,
    Tidy,
    Wait,
    Yield,
    parts,
)
from tests.virtual_time import run_on_leaping_clock


def sweep(program: Program) -> tuple[SweepReport, set[tuple[int, ...]]]:
    """Sweep a program: the report, and what the cancelled deliveries had done at their end."""
    effects: set[tuple[int, ...]] = set()

    async def main() -> SweepReport:
        interpreter: Any = None

        def setup() -> None:
            nonlocal interpreter
            interpreter = Interpreter(others)

        async def handler(payload: Payload | None, ctx: JobCtx) -> None:
            if ctx.attempt == 1:
                await interpreter.run(program)

        def note(run: SweepRun) -> None:
            if run.cancels and run.attempt == 1:
                effects.add(tuple(interpreter.effects))

        found: SweepFailure
        async with trio.open_nursery() as others:
            try:
                return await cancellation_sweep(handler, invariant=note, setup=setup)
            except SweepFailure as failure:
                found = failure  # raised below: the nursery would make a group of it
        raise found

    report: SweepReport = run_on_leaping_clock(main)
    return report, effects


class CancelAtEvent(trio.abc.Instrument):
    """Cancels at the n-th event of the run loop, whatever that is, but not in the midst of a
    handler's step, where nobody else could."""

    def __init__(self, number: int, scope: trio.CancelScope, tree: Tree) -> None:
        self.left = number
        self._scope = scope
        self._tree = tree
        self._in_step = True

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._event()
        self._in_step = task in self._tree.tasks

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._in_step = False
        self._event()

    def _event(self, *_: Any) -> None:
        self.left -= not self._in_step
        if self.left == 0:
            self._scope.cancel()

    after_io_wait = task_scheduled = _event


def all_effects(program: Program) -> set[tuple[int, ...]]:
    """What a cancel can leave done, found by brute force: a cancel at each event of the loop."""
    found: set[tuple[int, ...]] = set()

    async def main(number: int) -> bool:
        order = SteadyOrder()
        scope = trio.CancelScope()
        instrument: Any = None

        class Steps(trio.abc.Instrument):
            def after_task_step(self, task: trio.lowlevel.Task) -> None:
                order.steps += task in tree.tasks

        async def root() -> None:
            nonlocal tree, instrument
            tree = Tree(trio.lowlevel.current_task())
            instrument = CancelAtEvent(number, scope, tree)
            order.begin(tree.tasks)
            tree.on_company = order.has_company
            for added in (tree, Steps(), instrument):
                trio.lowlevel.add_instrument(added)
            if not number:
                scope.cancel()
            try:
                with scope:
                    await interpreter.run(program)
            finally:
                trio.lowlevel.remove_instrument(instrument)

        tree: Any = None
        with order.installed():
            async with trio.open_nursery() as others:
                interpreter = Interpreter(others)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(root)
        found.add(tuple(interpreter.effects))
        return not number or bool(instrument.left <= 0)

    for number in count():
        if not run_on_leaping_clock(lambda number=number: main(number)):  # type: ignore[misc]
            return found
    raise AssertionError


@pytest.mark.slow
@settings(max_examples=30)
@given(PLAIN_PROGRAMS)
@example(())
@example((Sleep(), Send(), Wait(), Send()))
@example((Send(), Sleep(), Send(), Yield()))
def test_one_task_has_a_checkpoint_for_each_place_at_which_a_cancel_arrives(
    program: Program,
) -> None:
    report, effects = sweep(program)
    moments = Counter(point.moment for point in report.checkpoints)
    assert moments["waits"] == len(program)
    assert moments["start"] == (program[:1] == (Send(),))
    assert moments["resumes"] == sum(pair == (Wait(), Send()) for pair in pairwise(program))
    assert moments["end"] == 1
    assert sum(moments.values()) == len(report.checkpoints) == report.histories - 1
    assert [point.number for point in report.checkpoints] == list(
        range(1, len(report.checkpoints) + 1)
    )
    # A cancel in a step leaves all steps before it done. (Sleep and Yield look for one last, Send
    # first, and nothing can come between.)
    assert {len(done) for done in effects} == {0, len(program)} | {
        done
        for done, (before, then) in enumerate(pairwise(program), 1)
        if then != Send() or before in (Wait(), Send())
    }


def nurseries(program: Program) -> list[Nursery]:
    found = [step for step in program if isinstance(step, Nursery)]
    return found + [inner for step in program for part in parts(step) for inner in nurseries(part)]


def waits(program: Program) -> int:
    """How often its tasks are suspended."""
    return sum(
        (not parts(step)) + isinstance(step, Nursery) + sum(map(waits, parts(step)))
        for step in program
    )


def is_cancelled(program: Program) -> bool:
    """Whether Cancelled can come up in it."""
    return any(not parts(step) or any(map(is_cancelled, _reached(step))) for step in program)


def has_bounds(program: Program) -> bool:
    return any(isinstance(step, Bounded) or any(map(has_bounds, parts(step))) for step in program)


@pytest.mark.slow
@settings(max_examples=40)
@given(PROGRAMS)
@example(
    (
        Nursery(
            ((Wait(), Send()), (Yield(),)),
            (
                Wait(),
                Send(),
            ),
        ),
        Send(),
    )
)
@example((Sleep(), Nursery(((Yield(),),), (Yield(), Yield()))))
@example((Tidy((Wait(),), (Send(), Sleep())), Send()))
def test_every_effect_that_a_cancel_can_have_is_found(program: Program) -> None:
    report, effects = sweep(program)
    if not has_bounds(program):
        moments = Counter(point.moment for point in report.checkpoints)
        assert moments["waits"] == waits(program)
        assert moments["ended"] == sum(len(step.tasks) for step in nurseries(program))
    assert effects == all_effects(program)


def swallows(program: Program) -> bool:
    """Whether a cancel can come up in a body that swallows it."""
    return any(
        (isinstance(step, Swallow) and is_cancelled(step.body))
        or any(map(swallows, _reached(step)))
        for step in program
    )


def _reached(step: Step) -> tuple[Program, ...]:
    """The parts of a step that a cancel reaches."""
    if isinstance(step, Shielded):
        return ()
    return (step.body,) if isinstance(step, Tidy) else parts(step)


@pytest.mark.slow
@settings(max_examples=40)
@given(MISTAKEN_PROGRAMS)
@example((Nursery(((Swallow((Sleep(),)),),), (Sleep(),)), Sleep()))
@example((Tidy((Sleep(),), (Swallow((Sleep(),)),)),))
def test_every_cancel_that_is_swallowed_is_found_and_nothing_else(program: Program) -> None:
    if not swallows(program):
        sweep(program)
        return
    with pytest.raises(SweepFailure, match="swallows its cancel"):
        sweep(program)


@pytest.mark.slow
@settings(max_examples=25)
@given(
    PROGRAMS,
    st.sampled_from(get_args(Cause)),
    st.integers(1, 2),
    st.booleans(),
)
def test_programs_without_mistakes_pass_whatever_happens_to_them(
    program: Program, by: Cause, cancels: int, auto_extend: bool
) -> None:
    async def main() -> None:
        async def handler(payload: Payload | None, ctx: JobCtx) -> None:
            await Interpreter(others).run(program)

        async with assert_no_leaks(), trio.open_nursery() as others:
            report = await cancellation_sweep(
                handler, by=by, cancels=cancels, auto_extend=auto_extend, max_histories=60
            )
            assert report.histories == 60 or not report.skipped

    run_on_leaping_clock(main)
