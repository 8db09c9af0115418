"""The sweep finds each kind of mistake that handlers make with cancels, and names its line."""

# ruff: noqa: SIM105 (handlers swallow their cancels as people do)

from __future__ import annotations

import functools
import threading
import time
from typing import Any

import pytest
import trio

from sepp_trio import JobCtx, Payload
from sepp_trio.testing import Cause, SweepRun, cancellation_sweep
from sepp_trio.testing._sweep._trio import abandoned
from tests.testing.sweeping import World, failure_of, line_of

CAUSES: list[Cause] = ["lease lost", "shutdown", "timeout"]


@pytest.fixture(params=CAUSES)
def cause(request: Any) -> Cause:
    given: Cause = request.param
    return given


@pytest.fixture
def world() -> World:
    return World()


async def test_work_that_is_done_before_its_mark_is_set(world: World, cause: Cause) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        for row in range(3):
            if row not in world.marks:
                world.rows.append(row)
                await trio.sleep(1)  # here
                world.marks.add(row)

    def no_row_twice(run: SweepRun) -> None:
        assert len(world.rows) == len(set(world.rows)), world.rows

    failure = await failure_of(handler, invariant=no_row_twice, setup=world.new, by=cause)
    assert failure.line is not None
    assert failure.line.number == line_of(handler)
    assert [delivery.cause for delivery in failure.history] == [cause, None]
    assert isinstance(failure.__cause__, AssertionError)


async def test_an_effect_that_is_repeated_when_the_ack_does_not_get_through(world: World) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(1)
        world.rows.append(1)

    def once(run: SweepRun) -> None:
        assert world.rows in ([], [1])

    failure = await failure_of(handler, invariant=once, setup=world.new)
    [cancelled, _] = failure.history
    assert cancelled.checkpoint is not None
    assert cancelled.checkpoint.moment == "end"
    assert cancelled.error is None


async def test_a_cancel_that_is_swallowed(world: World, cause: Cause) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        try:
            await trio.sleep(1)  # here
        except BaseException:
            pass

    failure = await failure_of(handler, by=cause)
    assert failure.problem == "the handler swallows its cancel: it returned"
    assert failure.line is not None
    assert failure.line.number == line_of(handler)


async def test_a_cancel_that_is_swallowed_before_the_next_one_gets_through() -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        try:
            await trio.sleep(1)  # here
        except BaseException:
            pass
        await trio.sleep(1)

    failure = await failure_of(handler)
    assert failure.problem == "the handler swallows its cancel"
    assert failure.line is not None
    assert failure.line.number == line_of(handler)


async def test_a_task_that_swallows_the_cancel_of_its_nursery() -> None:
    async def child() -> None:
        try:
            await trio.sleep(2)  # here
        except BaseException:
            pass

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)
            await trio.sleep(1)

    failure = await failure_of(handler)
    assert "swallows its cancel" in failure.problem
    assert failure.line is not None
    assert failure.line.number == line_of(child)


async def test_an_error_in_the_place_of_the_cancel() -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        try:
            await trio.sleep(1)
        except trio.Cancelled:
            raise ValueError("stopped") from None  # here

    failure = await failure_of(handler)
    assert failure.problem == "the handler raised ValueError instead of its cancel"
    assert failure.line is not None
    assert failure.line.number == line_of(handler)
    assert isinstance(failure.__cause__, ValueError)


async def test_a_cleanup_that_awaits_without_a_shield(world: World, cause: Cause) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        world.rows.append(1)
        try:
            await trio.sleep(1)
        finally:
            await trio.sleep(0.1)  # here
            world.rows.remove(1)

    def clean(run: SweepRun) -> None:
        assert not world.rows

    failure = await failure_of(handler, invariant=clean, setup=world.new, by=cause)
    [cancelled] = failure.history
    assert cancelled.raised[-1].number == line_of(handler)
    assert f"{line_of(handler)}, in " in str(failure)


async def test_a_shield_without_a_deadline_even_if_it_ends_quickly(
    world: World, cause: Cause
) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        done = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 1)
            try:
                await trio.sleep(0.5)
            finally:
                with trio.CancelScope(shield=True):
                    async with trio.open_nursery() as inner:
                        inner.start_soon(finish, done)
                        await done.wait()  # here

    async def finish(done: trio.Event) -> None:
        with trio.move_on_after(1):
            await trio.sleep(0.1)
        done.set()

    failure = await failure_of(handler, by=cause)
    assert failure.problem == (
        "a shielded section without a deadline keeps the handler from its cancel"
    )
    assert failure.line is not None
    assert failure.line.number == line_of(handler)


async def test_a_handler_that_outlives_its_lease(cause: Cause) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        try:
            await trio.sleep(1)
        finally:
            with trio.move_on_after(1000, shield=True):
                await trio.sleep(500)  # here

    failure = await failure_of(handler, by=cause, auto_extend=True)
    assert "outlives its lease" in failure.problem
    assert failure.line is not None
    assert failure.line.number == line_of(handler)


async def test_what_an_earlier_delivery_has_left_locked(world: World) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        if 1 in world.marks:
            await trio.sleep_forever()  # here
        world.marks.add(1)
        await trio.sleep(1)
        world.marks.remove(1)

    for auto_extend in (False, True):
        failure = await failure_of(handler, setup=world.new, auto_extend=auto_extend)
        assert failure.line is not None
        assert failure.line.number == line_of(handler)
        assert len(failure.history) == 2


async def test_a_job_that_never_succeeds_after_a_cancel(world: World) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        if 1 in world.marks:
            raise ValueError("already begun")  # here
        world.marks.add(1)
        await trio.sleep(1)
        world.marks.remove(1)

    failure = await failure_of(handler, setup=world.new)
    assert "given up after 11 deliveries: handler raised ValueError" in failure.problem
    assert str(failure).endswith(
        "\n  deliveries 2 to 10: not cancelled\n    it raised ValueError: already begun\n"
        "    the job: delivered again"
        "\n  delivery 11: not cancelled\n    it raised ValueError: already begun\n"
        "    the job: dead letter"
    )
    assert failure.line is not None
    assert failure.line.number == line_of(handler)


async def test_a_mark_that_counts_attempts(world: World) -> None:
    """Done is what the attempt has done: wrong as soon as there are two."""

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        if ctx.attempt == 1:
            world.rows.append(1)
        await trio.sleep(1)
        if ctx.attempt <= 2:
            world.rows.append(2)

    def all_rows(run: SweepRun) -> None:
        if run.settled:
            assert world.rows == [1, 2]

    failure = await failure_of(handler, invariant=all_rows, setup=world.new, cancels=2)
    assert failure.__cause__ is not None


async def test_a_bug_that_takes_two_cancels(world: World) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        if 1 not in world.marks:
            world.marks.add(1)
            await trio.sleep(1)
        elif 2 not in world.marks:
            world.marks.add(2)
            await trio.sleep(1)  # here
        else:
            world.rows.append(1)

    def nothing(run: SweepRun) -> None:
        assert not world.rows

    report = await cancellation_sweep(handler, invariant=nothing, setup=world.new)
    assert report.histories > 1
    failure = await failure_of(handler, invariant=nothing, setup=world.new, cancels=2)
    assert [line.number for line in failure.lines][1:] == [line_of(handler)]
    assert len(failure.history) == 3


async def test_a_cancel_between_an_answer_and_its_use(world: World) -> None:
    """What was received is lost if the next operation looks for a cancel before it does anything:
    no cancel of a wait finds that."""
    send, receive = trio.open_memory_channel[int](10)
    stored, found = trio.open_memory_channel[int](10)

    def setup() -> None:
        world.new()
        for channel in (receive, found):
            while channel.statistics().current_buffer_used:
                channel.receive_nowait()

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send.send, 1)
            row = await receive.receive()
        await stored.send(row)  # here

    def not_lost(run: SweepRun) -> None:
        if run.settled:
            assert found.statistics().current_buffer_used == run.attempt

    failure = await failure_of(handler, invariant=not_lost, setup=setup)
    assert failure.line is not None


async def test_a_drain_that_ends_the_work_early_as_if_it_were_done(world: World) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        for row in range(3):
            if ctx.stopping:
                return
            await trio.sleep(1)  # here
            world.rows.append(row)

    def all_rows(run: SweepRun) -> None:
        if run.settled:
            assert world.rows == [0, 1, 2]

    failure = await failure_of(handler, invariant=all_rows, setup=world.new, by="drain")
    [drained] = failure.history
    assert (drained.cause, drained.outcome) == ("drain", "acked")
    assert failure.line is not None
    assert failure.line.number == line_of(handler)


async def test_a_handler_that_swallows_every_cancel_is_ended_by_force(world: World) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        while not world.cleaned:
            try:
                await trio.sleep(1)  # here
                world.cleaned = True
            except BaseException:
                pass

    failure = await failure_of(handler, setup=world.new)
    assert failure.problem == "the handler swallows its cancel again and again"
    assert failure.line is not None
    assert failure.line.number == line_of(handler)
    world.cleaned = True  # or its coroutine would swallow that it is closed as well
    abandoned.pop().close()
    assert abandoned == []


async def test_a_thread_that_swallows_its_cancel(cause: Cause) -> None:
    def looks(payload: Payload | None, ctx: JobCtx) -> None:
        try:
            trio.from_thread.check_cancelled()  # here
        except BaseException:
            pass

    def calls(payload: Payload | None, ctx: JobCtx) -> None:
        try:
            trio.from_thread.run(trio.sleep, 1)  # here
        except BaseException:
            pass

    for handler in (looks, calls):
        failure = await failure_of(handler, by=cause)
        assert failure.problem == "the handler swallows its cancel: it returned"
        assert failure.line is not None
        assert failure.line.number == line_of(handler)


async def test_a_thread_that_does_its_work_twice(world: World) -> None:
    def handler(payload: Payload | None, ctx: JobCtx) -> None:
        for row in range(3):
            if row not in world.marks:
                world.rows.append(row)
                trio.from_thread.check_cancelled()  # here
                world.marks.add(row)

    def no_row_twice(run: SweepRun) -> None:
        assert len(world.rows) == len(set(world.rows))

    failure = await failure_of(handler, invariant=no_row_twice, setup=world.new)
    assert failure.line is not None
    assert failure.line.number == line_of(handler)


async def test_a_thread_that_looks_before_the_sweep_stands_in_is_told_with_its_line(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sepp_trio.testing._sweep._threads.ThreadChecks.watch", lambda self: None)

    def handler(payload: Payload | None, ctx: JobCtx) -> None:
        world.rows.append(1)
        for _ in range(100):
            time.sleep(0.002)
            trio.from_thread.check_cancelled()  # here

    def no_row_twice(run: SweepRun) -> None:
        assert len(world.rows) == len(set(world.rows))

    failure = await failure_of(handler, invariant=no_row_twice, setup=world.new)
    assert failure.line is not None
    assert failure.line.number == line_of(handler)


async def test_a_shielded_wait_for_what_the_cancel_has_ended() -> None:
    """It has a deadline, but the lease ends before; the waiting line is told."""

    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        done = trio.Event()

        async def work() -> None:
            await trio.sleep(1)
            done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            with trio.move_on_after(60, shield=True):
                await done.wait()  # here

    failure = await failure_of(handler, by="timeout")
    assert "outlives its lease" in failure.problem
    assert failure.line is not None
    assert failure.line.number == line_of(handler)


@pytest.mark.parametrize("kind", ["partial", "method", "object"])
async def test_lines_of_all_kinds_of_handlers(world: World, kind: str) -> None:
    class Handlers:
        async def handle(self, payload: Payload | None, ctx: JobCtx) -> None:
            world.rows.append(1)
            await trio.lowlevel.checkpoint()

        async def __call__(self, payload: Payload | None, ctx: JobCtx) -> None:
            await self.handle(payload, ctx)

    handlers = Handlers()
    handler: Any = {
        "partial": functools.partial(Handlers.handle, handlers),
        "method": handlers.handle,
        "object": handlers,
    }[kind]

    def once(run: SweepRun) -> None:
        assert len(world.rows) <= 1

    failure = await failure_of(handler, invariant=once, setup=world.new)
    assert failure.line is not None
    assert failure.line.function.endswith("Handlers.handle")
    report = await cancellation_sweep(handler)
    assert report.checkpoints[-1].line.file == __file__


async def test_a_cleanup_that_undoes_what_another_worker_has_begun(world: World) -> None:
    async def handler(payload: Payload | None, ctx: JobCtx) -> None:
        world.marks.add(1)
        try:
            await trio.sleep(1)  # here
            if 1 not in world.marks:
                world.rows.append(ctx.attempt)
        finally:
            with trio.move_on_after(5, shield=True):
                await trio.sleep(0.5)
                world.marks.discard(1)

    def not_pulled_away(run: SweepRun) -> None:
        assert not world.rows
        assert not run.settled or run.last.outcome == "acked"

    await cancellation_sweep(handler, invariant=not_pulled_away, setup=world.new)
    failure = await failure_of(handler, invariant=not_pulled_away, setup=world.new, by="takeover")
    assert failure.line is not None
    assert failure.line.number == line_of(handler)
    assert [delivery.outcome for delivery in failure.history] == ["delivered again", "acked"]
    assert [delivery.cause for delivery in failure.history] == ["takeover", None]


async def test_a_cleanup_that_does_not_end_after_another_worker_has_the_job(world: World) -> None:
    async def endless(payload: Payload | None, ctx: JobCtx) -> None:
        try:
            await trio.sleep(1)
        finally:
            with trio.move_on_after(1000, shield=True):
                if ctx.cancel_reason is not None:
                    await trio.sleep(500)  # here

    async def swallowing(payload: Payload | None, ctx: JobCtx) -> None:
        try:
            await trio.sleep(1)  # here
        except BaseException:
            with trio.move_on_after(5, shield=True):
                await trio.sleep(0.1)

    failure = await failure_of(endless, by="takeover")
    assert "outlives its lease" in failure.problem
    assert failure.line is not None
    assert failure.line.number == line_of(endless)
    failure = await failure_of(swallowing, by="takeover")
    assert "swallows its cancel" in failure.problem
    assert failure.line is not None
    assert failure.line.number == line_of(swallowing)


async def test_threads_that_go_on_while_another_worker_has_the_job() -> None:
    order: list[int] = []
    orders: set[tuple[int, ...]] = set()
    done = threading.Event()

    def setup() -> None:
        order.clear()
        done.clear()

    def handler(payload: Payload | None, ctx: JobCtx) -> None:
        if ctx.cancel_reason is not None:
            done.wait(5)  # it does not look for cancels
        order.append(ctx.attempt)
        done.set()

    def note(run: SweepRun) -> None:
        orders.add(tuple(order))

    await cancellation_sweep(handler, invariant=note, setup=setup, by="takeover")
    assert orders >= {(1,), (1, 2), (2, 1)}
