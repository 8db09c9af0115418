"""How a sweep runs: clocks, causes, limits, cancels from outside, handlers that differ."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from typing import Any, get_args

import pytest
import trio
import trio.testing

from sepp_trio import HandlerError, JobCtx, Payload
from sepp_trio.testing import (
    Cause,
    SweepFailure,
    SweepReport,
    SweepRun,
    assert_no_leaks,
    cancellation_sweep,
)
from tests.testing.programs import Interpreter, Sleep, Yield
from tests.testing.sweeping import Handler, World, failure_of, line_of


@pytest.fixture
def world() -> World:
    return World()


async def three_waits(payload: Payload | None, ctx: JobCtx) -> None:
    for _ in range(3):
        await trio.sleep(1)


async def test_the_handler_sees_the_real_cause_of_its_cancel() -> None:
    seen: list[tuple[str | None, bool, int]] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        try:
            await trio.sleep(1)
        except trio.Cancelled:
            seen.append((ctx.cancel_reason, ctx.stopping, ctx.attempt))
            raise

    await cancellation_sweep(handler, by=("lease lost", "shutdown", "timeout"))
    assert seen == [
        ("lease lost", False, 1),
        ("shutdown grace over", True, 1),
        ("handler timed out", False, 1),
    ]


async def test_a_lost_lease_is_lost_at_the_server_as_well() -> None:
    outcomes: list[str] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        try:
            await trio.sleep(1)
        finally:
            if ctx.cancel_reason is not None:
                with trio.move_on_after(5, shield=True):
                    await ctx.extend(10)

    def note(run: SweepRun) -> None:
        outcomes.append(type(run.last.error).__name__)

    report = await cancellation_sweep(handler, invariant=note)
    assert outcomes == ["NoneType", "LeaseLostError", "NoneType", "NoneType", "NoneType"]
    assert report.deliveries == 5


async def test_payload_and_fields_reach_the_handler() -> None:
    seen: set[Any] = set()

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        assert payload is not None
        seen.add((payload.data, ctx.queue, ctx.job_type, ctx.priority, ctx.custom["n"]))
        seen.add(ctx.max_attempts)
        await trio.lowlevel.checkpoint()

    await cancellation_sweep(
        handler,
        Payload.json("hello"),
        queue="emails",
        job_type="welcome",
        priority=7,
        custom={"n": 1},
        idempotency_key="hello-1",
    )
    assert seen == {(b'"hello"', "emails", "welcome", 7, 1), 11}


async def test_attempts_that_are_not_given_are_enough() -> None:
    report = await cancellation_sweep(three_waits, cancels=3, max_attempts=None)
    assert report.deliveries > 3


async def test_setup_and_invariant_may_be_async_and_take_their_time(world: World) -> None:
    calls: list[str] = []
    attempts: list[int] = []

    async def setup() -> None:
        await trio.sleep(100)
        calls.append("setup")

    async def invariant(run: SweepRun) -> None:
        await trio.sleep(100)
        calls.append("settled" if run.settled else f"cancel {run.cancels}")
        attempts.append(run.attempt)

    await cancellation_sweep(three_waits, setup=setup, invariant=invariant)
    assert attempts == [1, *[1, 2] * 4]
    assert calls[:2] == ["setup", "settled"]
    assert calls[2:] == ["setup", "cancel 1", "settled"] * 4


@pytest.mark.parametrize("by", ["lease lost", "shutdown", "timeout"])
async def test_nothing_is_left_behind(by: Any) -> None:
    async with assert_no_leaks():
        await cancellation_sweep(three_waits, by=by)
    assert not trio._core._run._r.__class__.__module__.startswith("sepp_trio")


@pytest.mark.parametrize("by", get_args(Cause))
async def test_a_cancel_from_outside_ends_the_sweep_cleanly(by: Cause) -> None:
    reasons: list[str | None] = []

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        try:
            await trio.sleep(10)
        finally:
            with trio.move_on_after(5, shield=True):
                await trio.sleep(2)
            reasons.append(ctx.cancel_reason)

    for seconds in range(5, 100, 5):
        async with assert_no_leaks():
            with trio.move_on_after(seconds + 0.5) as scope:
                await cancellation_sweep(handler, by=by)
        if not scope.cancelled_caught:
            break
    assert seconds > 30
    assert "worker cancelled" in reasons
    assert not trio._core._run._r.__class__.__module__.startswith("sepp_trio")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
async def test_a_handler_that_leaves_leaves_the_sweep(error: BaseException) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        if ctx.attempt == 2:
            raise error
        await trio.sleep(1)

    with pytest.raises(type(error)) as caught:
        await cancellation_sweep(handler)
    assert caught.value is error


async def test_a_handler_that_leaves_instead_of_its_cancel_leaves_the_sweep() -> None:
    error = SystemExit(4)

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        try:
            await trio.sleep(1)
        except trio.Cancelled:
            raise error from None

    async def invariant(run: SweepRun) -> None:
        await trio.sleep(10)  # the worker has ended long before

    with pytest.raises(SystemExit) as caught:
        await cancellation_sweep(handler, invariant=invariant)
    assert caught.value is error


async def test_an_exception_of_setup_comes_out_as_it_is() -> None:
    def setup() -> None:
        raise OSError("no database")

    with pytest.raises(OSError, match="no database"):
        await cancellation_sweep(three_waits, setup=setup)


async def test_a_skip_in_an_invariant_is_no_failure_of_the_sweep() -> None:
    def invariant(run: SweepRun) -> None:
        pytest.skip("not here")

    with pytest.raises(pytest.skip.Exception) as caught:
        await cancellation_sweep(three_waits, invariant=invariant)
    assert caught.value.__notes__ == ["The history:\ndelivery 1: not cancelled\n  the job: acked"]


async def test_an_invariant_that_fails_without_a_cancel_says_so() -> None:
    def invariant(run: SweepRun) -> None:
        raise ValueError("never")

    failure = await failure_of(three_waits, invariant=invariant)
    assert failure.lines == ()
    assert failure.line is None
    assert "delivery 1: not cancelled" in str(failure)
    assert isinstance(failure.__cause__, ValueError)


async def test_two_cancels_are_at_all_pairs_of_checkpoints() -> None:
    pairs: set[tuple[int, ...]] = set()

    def note(run: SweepRun) -> None:
        pairs.add(
            tuple(
                delivery.checkpoint.number
                for delivery in run.deliveries
                if delivery.checkpoint is not None
            )
        )

    report = await cancellation_sweep(three_waits, invariant=note, cancels=2)
    numbers = range(1, 5)
    assert pairs == {(), *itertools.product(numbers), *itertools.product(numbers, numbers)}
    assert report.histories == 1 + 4 + 16


async def test_what_is_over_the_limit_is_left_out_evenly_and_told() -> None:
    pairs: list[tuple[int, ...]] = []

    def note(run: SweepRun) -> None:
        if run.settled:
            pairs.append(
                tuple(
                    delivery.checkpoint.number
                    for delivery in run.deliveries
                    if delivery.checkpoint is not None
                )
            )

    report = await cancellation_sweep(three_waits, invariant=note, cancels=2, max_histories=13)
    assert report.histories == 13
    assert report.skipped == 8
    assert pairs[5:] == [(1, 1), (1, 3), (2, 1), (2, 3), (3, 1), (3, 3), (4, 1), (4, 3)]
    assert "8 histories were left out" in str(report)


async def test_cancels_hit_the_deliveries_after_a_retry_too(world: World) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        if not world.marks:
            await trio.sleep(1)
            world.marks.add(1)
            raise HandlerError.retry("second part next time")
        world.rows.append(1)
        await trio.sleep(1)
        world.rows.remove(1)

    def clean(run: SweepRun) -> None:
        assert not world.rows

    failure = await failure_of(handler, invariant=clean, setup=world.new)
    assert [delivery.cause for delivery in failure.history] == [None, "lease lost"]


@pytest.mark.parametrize("ends_early", [True, False])
async def test_a_handler_that_takes_another_way_each_time_is_told_so(ends_early: bool) -> None:
    runs = itertools.count()

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        if not next(runs):
            await trio.sleep(1)  # here
        elif not ends_early:
            await trio.sleep(2)

    failure = await failure_of(handler)
    assert "takes another way" in failure.problem
    assert ("had ended before" in failure.problem) == ends_early
    assert failure.line is not None
    assert failure.line.number == line_of(handler)
    assert "seed what is random" in failure.advice


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"by": "fire"}, ValueError, "by must be one or several of"),
        ({"by": None}, ValueError, "by must be one or several of .*, not None"),
        ({"by": ()}, ValueError, "by must be"),
        ({"cancels": 0}, ValueError, "cancels"),
        ({"max_histories": 0}, ValueError, "max_histories"),
        ({"lease_duration": -1}, ValueError, "lease_duration"),
        ({"handler_timeout": 0}, ValueError, "handler_timeout"),
        ({"limit": 0}, ValueError, "limit"),
        ({"queues": "q"}, TypeError, r"no argument 'queues' \(did you mean queue\?\)"),
        ({"invarient": print}, TypeError, r"no argument 'invarient' \(did you mean invariant\?\)"),
        ({"config": {}}, TypeError, "config must be a BrokerConfig, not dict"),
        ({"max_attempts": 1}, ValueError, r"max_attempts \(1\) must be more than cancels \(1\)"),
        (
            {"max_attempts": 2, "cancels": 5},
            ValueError,
            r"max_attempts \(2\) must be more than cancels \(5\)",
        ),
        ({"payload": "text"}, TypeError, "payload must be a Payload"),
        ({"invariant": 3}, TypeError, "invariant must be a function, not int"),
        ({"setup": []}, TypeError, "setup must be a function, not list"),
    ],
)
async def test_wrong_arguments_are_refused(options: Any, error: Any, match: str) -> None:
    with pytest.raises(error, match=match):
        await cancellation_sweep(three_waits, **options)


async def _says_no(run: SweepRun) -> Any:
    return False


@pytest.mark.parametrize("invariant", [lambda run: False, _says_no])
async def test_an_invariant_that_returns_false_does_not_hold(invariant: Any) -> None:
    with pytest.raises(SweepFailure, match="after delivery 1: AssertionError: it returned False"):
        await cancellation_sweep(three_waits, invariant=invariant)


async def test_a_handler_that_is_none_is_refused() -> None:
    with pytest.raises(TypeError, match="handler must"):
        await cancellation_sweep(three_waits(None, None))  # type: ignore[arg-type]


def test_it_runs_on_the_real_clock() -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(0.01)
        await trio.lowlevel.checkpoint()

    report: SweepReport = trio.run(cancellation_sweep, handler)
    assert len(report.checkpoints) == 3


PROGRAM = """
import trio, trio.testing
from sepp_trio.testing import cancellation_sweep

async def part(seconds, log):
    for _ in range(3):
        await trio.sleep(seconds)
        log.append(trio.lowlevel.current_task().name)

async def handler(payload, ctx):
    log = []
    async with trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(part, 1, log, name=str(number))
    logs.add(tuple(log))

logs = set()
clock = trio.testing.MockClock(autojump_threshold=0)
report = trio.run(cancellation_sweep, handler, clock=clock)
assert len(logs) == 1, logs
print([str(point) for point in report.checkpoints], logs)
"""


def test_tasks_take_turns_in_the_same_order_in_every_process() -> None:
    def output() -> str:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
        )
        return done.stdout

    assert output() == output() != ""


async def test_sweeps_may_run_side_by_side() -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(three_waits, payload, ctx)

    async def sweep(cancels: int) -> None:
        reports.append(await cancellation_sweep(handler, cancels=cancels, max_histories=40))

    reports: list[SweepReport] = []
    sorts = trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING
    async with trio.open_nursery() as nursery:
        for cancels in (2, 1, 1, 2):
            nursery.start_soon(sweep, cancels)
    assert len(reports) == 4
    assert len({report.checkpoints for report in reports}) == 1
    assert not trio._core._run._r.__class__.__module__.startswith("sepp_trio")
    assert trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING is sorts


async def test_the_failure_is_told_in_full() -> None:
    world = World()

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        world.rows.append(1)
        await trio.sleep(1)

    def once(run: SweepRun) -> None:
        assert len(world.rows) == 1, "twice"

    with pytest.raises(SweepFailure) as caught:
        await cancellation_sweep(handler, invariant=once, setup=world.new)
    text = str(caught.value)
    assert text.startswith("the invariant does not hold after delivery 2: AssertionError: twice")
    assert "lease lost at checkpoint 1, while it waited here" in text
    assert "await trio.sleep(1)    [in trio.sleep]" in text
    assert "delivery 2: not cancelled" in text


async def test_a_line_in_another_file_comes_with_the_one_that_has_called_it() -> None:
    async with trio.open_nursery() as others:
        interpreter = Interpreter(others)

        async def child() -> None:
            try:
                await interpreter.run((Sleep(),))  # here
            except trio.Cancelled:
                raise ValueError from None

        async def handler(payload: Payload | None, ctx: JobCtx) -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(interpreter.run, (Yield(),))
                nursery.start_soon(child)
                await trio.sleep(0.1)  # above

        failure = await failure_of(handler)
        assert failure.line is not None
        [cancelled] = failure.history
        first = cancelled.raised[0]
        assert first.file.endswith("programs.py")
        assert first.called_from is not None
        assert first.called_from.number in (line_of(child), line_of(handler, "# above"))
        assert "called from tests/testing/test_sweep_runs.py" in str(failure)
        report = await cancellation_sweep(handler_of(interpreter))
        assert {
            (point.line.function, point.line.called_from and point.line.called_from.function)
            for point in report.checkpoints
            if point.moment == "waits"
        } == {
            ("Interpreter._do", "handler_of.<locals>.handler"),
            ("handler_of.<locals>.handler", None),
        }


def handler_of(interpreter: Interpreter) -> Handler:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await interpreter.run((Sleep(), Yield()))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(interpreter.run, (Sleep(),))

    return handler


async def test_a_limit_for_deliveries_that_nobody_cancels() -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(4000)  # here

    for options in ({}, {"limit": 100}):
        failure = await failure_of(handler, auto_extend=True, lease_duration=300, **options)
        assert failure.problem == "the handler does not end, and nobody cancels it"
        assert failure.line is not None
        assert failure.line.number == line_of(handler)
    await cancellation_sweep(handler, auto_extend=True, lease_duration=300, limit=5000)


def test_a_thread_over_the_limit_is_waited_for_and_told_of() -> None:
    def handler(payload: Payload | None, ctx: JobCtx) -> None:
        time.sleep(2.5)  # here

    async def main() -> None:
        async with assert_no_leaks():
            failure = await failure_of(handler, limit=0.1)
        assert failure.problem == "the handler does not end, and nobody cancels it"
        assert failure.line is not None
        assert failure.line.number == line_of(handler)

    trio.run(main)


async def test_a_sweep_that_cannot_look_into_trio_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def of_another_version(task: trio.lowlevel.Task) -> int:
        raise AttributeError("_cancel_points")

    monkeypatch.setattr("sepp_trio.testing._sweep._record.is_blocked", of_another_version)
    with pytest.raises(RuntimeError, match="the sweep's Recording has failed"):
        await cancellation_sweep(three_waits)
