"""The state machine finds the mistakes of handlers, tells them as short stories, and lets those
without a mistake pass."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest
import trio
from hypothesis import Phase, Verbosity, given, reproduce_failure, settings
from hypothesis import strategies as st
from hypothesis.database import InMemoryExampleDatabase
from hypothesis.errors import InvalidArgument
from hypothesis.stateful import invariant, rule, run_state_machine_as_test
from hypothesis.vendor.pretty import pretty

from sepp_trio import BrokerConfig, EnqueueRequest, HandlerError, JobCtx, LimitsConfig, Payload
from sepp_trio.testing import Jobs, LoseReply
from sepp_trio.testing.stateful import HandlerMachine, _loop
from sepp_trio.testing.stateful._requests import Request
from sepp_trio.testing.strategies import payloads
from sepp_trio.worker import Handler

QUICK = settings(
    max_examples=100,
    stateful_step_count=7,
    derandomize=True,
    database=None,
    deadline=None,
    report_multiple_bugs=False,
    phases=[Phase.generate, Phase.shrink],
)


class Bank:
    """What handlers do in the world; outlives their processes."""

    def __init__(self) -> None:
        self.payments: list[int] = []
        self.keys: set[str] = set()

    def pay(self, order: int) -> None:
        self.payments.append(order)

    def pay_once(self, key: str, order: int) -> None:
        if key not in self.keys:
            self.keys.add(key)
            self.payments.append(order)


class Charging(HandlerMachine):
    """Charges each job's order, once."""

    settle_within = 200.0
    payloads: ClassVar = {"charge": payloads(values=st.integers(1, 3))}

    def __init__(self) -> None:
        super().__init__()
        self.bank = Bank()

    def handlers(self) -> Mapping[str, Handler]:
        return {"charge": self.charge}

    async def charge(self, payload: Payload | None, ctx: JobCtx) -> None:
        raise NotImplementedError

    @invariant()
    def nobody_pays_twice(self) -> None:
        asked = Counter(order(job.payload) for job in self.jobs)
        assert not Counter(self.bank.payments) - asked, "charged twice"

    def check(self, jobs: Jobs) -> None:
        super().check(jobs)
        assert len(self.bank.payments) == len(jobs), "not everybody has paid"


def order(payload: Payload | None) -> int:
    assert payload is not None
    number = payload.decode_json()
    assert isinstance(number, int)
    return number


class Idempotent(Charging):
    async def charge(self, payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep(0.5)
        self.bank.pay_once(ctx.id, order(payload))
        await trio.sleep(2)


def failure_of(
    machine: type[HandlerMachine], error: type[BaseException] = AssertionError, **more: Any
) -> tuple[BaseException, list[str]]:
    """The error that a machine ends with, and the story that is told of it."""
    with pytest.raises(error) as caught:
        run_state_machine_as_test(machine, settings=settings(QUICK, **more))
    lines = "\n".join(caught.value.__notes__).splitlines()
    steps = [line for line in lines if line.startswith("state.")]
    return caught.value, [line for line in steps if "nobody_pays_twice" not in line]


def play(machine: HandlerMachine, story: Callable[[Any], None]) -> None:
    """Play a story by hand, as its print says."""
    try:
        story(machine)
    finally:
        machine.teardown()


# ---- Right ones ----


def test_an_idempotent_handler_passes() -> None:
    run_state_machine_as_test(
        Idempotent, settings=settings(QUICK, stateful_step_count=30, max_examples=20)
    )


class InThreads(Charging):
    def handlers(self) -> Mapping[str, Handler]:
        return {"charge": self.charge_in_thread, "look": self.look}

    def charge_in_thread(self, payload: Payload | None, ctx: JobCtx) -> None:
        ctx.extend_from_thread(30)
        self.bank.pay_once(ctx.id, order(payload))
        trio.from_thread.run(trio.sleep, 1)

    async def look(self, payload: Payload | None, ctx: JobCtx) -> None:
        await trio.to_thread.run_sync(self.bank.keys.copy)


def test_plain_functions_and_threads_of_async_ones_pass() -> None:
    class Both(InThreads):
        payloads: ClassVar = {"charge": Charging.payloads["charge"], "look": st.none()}

        def nobody_pays_twice(self) -> None:
            assert len(self.bank.payments) == len(self.bank.keys)

        def check(self, jobs: Jobs) -> None:
            charges = jobs.where(lambda job: job.job_type == "charge")
            assert len(self.bank.payments) == len(charges)

    run_state_machine_as_test(Both, settings=settings(QUICK, max_examples=15))


# ---- Seeded mistakes ----


class ChargesAtEachDelivery(Charging):
    async def charge(self, payload: Payload | None, ctx: JobCtx) -> None:
        await trio.lowlevel.checkpoint()
        self.bank.pay(order(payload))
        await trio.lowlevel.checkpoint()


def test_a_handler_that_is_not_idempotent_is_found() -> None:
    error, story = failure_of(ChargesAtEachDelivery)
    assert "charged twice" in str(error) or "not everybody" in str(error)
    assert "state.enqueue(request=EnqueueRequest('jobs', 'charge', Payload.json(1)))" in story
    assert story[-1] == "state.teardown()"
    assert len(story) <= 5


class AcksTooSoon(Charging):
    without = ("lose_lease", "end_too_late", "next_call", "black_hole", "restart_server")

    async def charge(self, payload: Payload | None, ctx: JobCtx) -> None:
        await self.client.ack(ctx)
        await trio.sleep(1)
        self.bank.pay(order(payload))


def test_an_ack_before_the_side_effect_is_found() -> None:
    error, story = failure_of(AcksTooSoon)
    assert "not everybody has paid" in str(error)
    assert len(story) <= 4


class RemembersInMemory(Charging):
    """Keeps what it must not do again where it is lost with the process."""

    # Only what has to do with it: the story is found the sooner.
    without = ("lose_lease", "end_too_late", "next_call", "black_hole", "restart_server")

    def handlers(self) -> Mapping[str, Handler]:
        seen: set[str] = set()

        async def charge(payload: Payload | None, ctx: JobCtx) -> None:
            if ctx.id not in seen:
                seen.add(ctx.id)
                self.bank.pay(order(payload))
            await trio.sleep(5)

        return {"charge": charge}


def test_a_memory_that_does_not_outlive_the_process_is_found() -> None:
    _, story = failure_of(RemembersInMemory)
    assert len(story) <= 5
    assert any(line.startswith("state.restart_worker(how=") for line in story)


class Shielded(Idempotent):
    async def charge(self, payload: Payload | None, ctx: JobCtx) -> None:
        try:
            await super().charge(payload, ctx)
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                await trio.sleep_forever()


def test_a_shield_without_a_deadline_is_found_and_where_it_is() -> None:
    def story(state: Shielded) -> None:
        state.enqueue(request("charge", 1))
        state.restart_worker(how="cancel")

    with pytest.raises(AssertionError, match=r"told to stop \(cancel\) and has not") as caught:
        play(Shielded(), story)
    assert "was cancelled (worker cancelled) and waits at" in str(caught.value)
    assert "await trio.sleep_forever()" in str(caught.value)


class NeverDone(Charging):
    async def charge(self, payload: Payload | None, ctx: JobCtx) -> None:
        await trio.sleep_forever()


def test_a_job_that_never_ends_is_found_and_where_it_is() -> None:
    with pytest.raises(AssertionError, match="not all jobs are done") as caught:
        play(NeverDone(), lambda state: state.enqueue(request("charge", 1)))
    assert "await trio.sleep_forever()" in str(caught.value)


class FailsAlways(Charging):
    async def charge(self, payload: Payload | None, ctx: JobCtx) -> None:
        raise ValueError("no money")


def test_a_job_that_is_given_up_is_found_and_why() -> None:
    with pytest.raises(AssertionError, match=r"jobs were given up(.|\n)*no money"):
        play(FailsAlways(), lambda state: state.enqueue(request("charge", 1)))


class Asserts(Charging):
    async def charge(self, payload: Payload | None, ctx: JobCtx) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.part, ctx)
        self.bank.pay_once(ctx.id, order(payload))

    async def part(self, ctx: JobCtx) -> None:
        assert ctx.attempt == 1, "once is enough"
        await trio.sleep(1)


def test_an_assertion_in_a_handler_is_the_tests_own() -> None:
    def story(state: Asserts) -> None:
        state.enqueue(request("charge", 1))
        state.lose_lease(job=1)
        with pytest.raises(AssertionError, match="once is enough"):
            state.let_time_pass(seconds=5.0)
        raise ZeroDivisionError  # the story is over

    with pytest.raises(ZeroDivisionError):
        play(Asserts(), story)


def test_a_handler_that_leaves_the_program_ends_the_test() -> None:
    class Leaves(Charging):
        async def charge(self, payload: Payload | None, ctx: JobCtx) -> None:
            raise SystemExit(3)

    machine = Leaves()
    with pytest.raises(SystemExit, match="3"):
        play(machine, lambda state: state.enqueue(request("charge", 1)))


def request(job_type: str, value: object, **more: Any) -> EnqueueRequest:
    return EnqueueRequest("jobs", job_type, Payload.json(value), **more)


# ---- Replay ----


def test_a_story_is_the_same_each_time() -> None:
    told = []

    class Telling(Idempotent):
        def check(self, jobs: Jobs) -> None:
            told.append(str(jobs))

    for _ in range(2):
        run_state_machine_as_test(Telling, settings=settings(QUICK, max_examples=15))
    assert len(told) >= 20
    half = len(told) // 2
    assert told[:half] == told[half:]


def test_a_failing_story_is_kept_in_the_database() -> None:
    played = []

    class Played(ChargesAtEachDelivery):
        def teardown(self) -> None:
            played.append(len(self.jobs))
            super().teardown()

    database = InMemoryExampleDatabase()
    failure_of(Played, database=database, stateful_step_count=4)
    assert len(played) > 10
    played.clear()
    only = settings(QUICK, database=database, phases=[Phase.reuse], stateful_step_count=4)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Played, settings=only)
    assert 1 in played
    assert len(played) < 10


def test_a_failing_story_is_played_again_from_its_blob() -> None:
    error, _ = failure_of(ChargesAtEachDelivery, print_blob=True, phases=[Phase.generate])
    [note] = [note for note in error.__notes__ if "reproduce_failure(" in note]
    version, blob = eval(note[note.index("reproduce_failure(") + 17 : note.rindex(")") + 1])

    class Again(ChargesAtEachDelivery):
        pass

    reproduce_failure(version, blob)(Again)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Again, settings=QUICK)


def test_a_story_can_be_played_by_hand() -> None:
    def story(state: ChargesAtEachDelivery) -> None:
        state.enqueue(request("charge", 1))
        state.next_call(LoseReply("Ack"))
        state.let_time_pass(90.0)
        state.settle()
        [job] = state.jobs.acked
        assert job.id.endswith("0001")
        assert state.now >= 90

    play(ChargesAtEachDelivery(), story)


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        (None, ""),
        (Payload.json({"order": 1}), ", Payload.json({'order': 1})"),
        (Payload(b"[ ]", "json"), ", Payload(data=b'[ ]', encoding='json')"),
        (Payload(b"[", "json"), ", Payload(data=b'[', encoding='json')"),
        (Payload(b"1", "text"), ", Payload(data=b'1', encoding='text')"),
    ],
)
def test_requests_are_printed_as_they_would_be_written(payload: Payload | None, shown: str) -> None:
    request = Request("jobs", "look", payload)
    assert pretty(request) == repr(request) == f"EnqueueRequest('jobs', 'look'{shown})"
    assert repr(Request("jobs", "look", idempotency_key="a")).endswith(", idempotency_key='a')")


# ---- Rules of one's own ----


class WithDeadLetters(HandlerMachine):
    queues = ("jobs", "others")
    payloads: ClassVar = {"charge": st.none()}
    idempotency_keys = st.none()
    config = BrokerConfig(limits=LimitsConfig(default_max_attempts=2))
    without = ("restart_server", "black_hole")

    def __init__(self) -> None:
        super().__init__()
        self.refused = 0

    def handlers(self) -> Mapping[str, Handler]:
        return {"charge": self.charge}

    async def charge(self, payload: Payload | None, ctx: JobCtx) -> None:
        self.refused += 1
        raise HandlerError.permanent("no")

    @rule()
    def wait_for_the_first(self) -> None:
        self.run(self.until_refused)

    async def until_refused(self) -> None:
        await trio.sleep(120 if self.jobs else 0)
        assert self.refused or not self.jobs

    def check(self, jobs: Jobs) -> None:
        assert len(jobs.dead_letters) == len(jobs)


def test_rules_settings_and_checks_can_be_changed() -> None:
    run_state_machine_as_test(WithDeadLetters, settings=settings(QUICK, max_examples=30))
    names = {found.function.__name__ for found in WithDeadLetters.setup_state().rules}
    assert "wait_for_the_first" in names
    assert not names & {"restart_server", "black_hole"}


def test_a_call_of_ones_own_that_never_ends_is_ended() -> None:
    machine = Idempotent()
    with pytest.raises(trio.TooSlowError):
        play(machine, lambda state: state.run(trio.sleep_forever))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({}, r"Wrong\.payloads must say what is enqueued"),
        ({"t": "text"}, r"Wrong\.payloads\['t'\] must be a strategy, not str"),
        (["t"], r"Wrong\.payloads must be a mapping of job types to strategies, not list"),
    ],
)
def test_payloads_that_cannot_be_enqueued_are_told_of_once(wrong: Any, words: str) -> None:
    class Wrong(HandlerMachine):
        payloads: ClassVar = wrong

        def handlers(self) -> Mapping[str, Handler]:
            return {"t": print}

    with pytest.raises(InvalidArgument, match=words):
        run_state_machine_as_test(Wrong, settings=settings(QUICK, report_multiple_bugs=True))


def test_what_is_missing_is_said() -> None:
    class NoHandlers(HandlerMachine):
        payloads: ClassVar = {"charge": st.none()}

    with pytest.raises(NotImplementedError, match=r"NoHandlers\.handlers must give"):
        run_state_machine_as_test(NoHandlers, settings=QUICK)
    with pytest.raises(InvalidArgument, match="'restart' is none of"):

        class Wrong(HandlerMachine):
            without = ("restart",)


def test_what_is_async_and_must_not_be_is_said() -> None:
    class AsyncCheck(Idempotent):
        async def check(self, jobs: Jobs) -> None:  # type: ignore[override]
            raise AssertionError

    class AsyncHandlers(Idempotent):
        async def handlers(self) -> Mapping[str, Handler]:  # type: ignore[override]
            return {}

    few = settings(QUICK, max_examples=2, stateful_step_count=2)
    with pytest.raises(TypeError, match=r"AsyncCheck\.check must not be async"):
        run_state_machine_as_test(AsyncCheck, settings=few)
    with pytest.raises(TypeError, match=r"AsyncHandlers\.handlers must not be async"):
        run_state_machine_as_test(AsyncHandlers, settings=few)


def test_a_server_clock_that_jumps_is_played() -> None:
    def story(state: Any) -> None:
        state.enqueue(request("charge", 1))
        state.jump_server_clock(seconds=3600.0)
        assert state.jobs[0].expiries == 1
        for _ in range(2):
            state.jump_server_clock(seconds=-30.0)
        assert min(state._jumps()) > 0

    play(Idempotent(), story)


def test_a_thread_that_does_not_end_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_loop, "_PATIENCE", 0.2)
    over = threading.Event()

    class Endless(Charging):
        def handlers(self) -> Mapping[str, Handler]:
            return {"charge": lambda payload, ctx: over.wait(20) and None}

    def story(state: Endless) -> None:
        with pytest.raises(RuntimeError, match=r"1 threads of handlers have worked for 0\.2 s"):
            state.enqueue(request("charge", 1))
        over.set()
        raise ZeroDivisionError  # the story is over

    with pytest.raises(ZeroDivisionError):
        play(Endless(), story)
    trio.run(trio.sleep, 0)


def test_what_breaks_the_world_comes_out() -> None:
    state = Idempotent()
    state.enqueue(request("charge", 1))
    nursery = state._world._nursery
    nursery.start_soon(_break)
    with pytest.raises(ZeroDivisionError):
        state.settle()
    with pytest.raises(RuntimeError, match="the run has ended"):
        state.settle()
    with pytest.raises(RuntimeError, match="the run has ended"):
        state.teardown()
    trio.run(trio.sleep, 0)


async def _break() -> None:
    raise ZeroDivisionError


# ---- What it leaves behind ----


@pytest.mark.parametrize("machine", [Idempotent, Shielded, NeverDone])
def test_trio_can_be_run_again_after_a_story(machine: type[Charging]) -> None:
    state = machine()
    with pytest.raises(ZeroDivisionError):
        play(state, lambda state: (state.enqueue(request("charge", 1)), 1 / 0))
    trio.run(trio.sleep, 0)


def test_a_machine_that_is_not_used_starts_nothing() -> None:
    machine = Idempotent()
    trio.run(trio.sleep, 0)
    machine.teardown()


def test_the_log_is_that_of_the_last_story(caplog: pytest.LogCaptureFixture) -> None:
    run_state_machine_as_test(Idempotent, settings=settings(QUICK, max_examples=10))
    assert not caplog.records
    failure_of(ChargesAtEachDelivery, phases=[Phase.generate])
    assert 0 < len(caplog.records) < 10


@settings(max_examples=3, database=None, verbosity=Verbosity.quiet)
@given(st.integers(0, 3))
def test_stories_can_be_told_within_given(number: int) -> None:
    def story(state: Idempotent) -> None:
        for _ in range(number):
            state.enqueue(request("charge", 1))
        state.settle()
        assert len(state.bank.payments) == number

    play(Idempotent(), story)
