"""Plans are values: readable, comparable, the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from grpclib.const import Status

from sepp_trio import testing
from sepp_trio.testing import (
    BlackHole,
    Delay,
    DropConnection,
    Fail,
    Fault,
    FaultPlan,
    JumpServerClock,
    LoseLease,
    LoseReply,
    RestartServer,
    random_network_plan,
    random_server_plan,
)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (Fail("Ack"), "Fail('Ack')"),
        (
            Fail("Ack", 3, Status.ABORTED),
            "Fail('Ack', nth=3, status=Status.ABORTED)",
        ),
        (Delay("Reserve", request=0.5), "Delay('Reserve', request=0.5)"),
        (LoseReply("Nack", 2, silent=True), "LoseReply('Nack', nth=2, silent=True)"),
        (DropConnection(1.5), "DropConnection(1.5)"),
        (BlackHole(1.0, 2.0), "BlackHole(1.0, 2.0)"),
        (LoseLease(2.0, by="ack"), "LoseLease(2.0, by='ack')"),
        (RestartServer(3.0), "RestartServer(3.0)"),
        (JumpServerClock(1.0, -60.0), "JumpServerClock(1.0, -60.0)"),
    ],
)
def test_a_fault_reads_as_it_is_written(fault: Fault, text: str) -> None:
    assert repr(fault) == text
    assert eval(text, {**vars(testing), "Status": Status}) == fault


def test_a_plan_can_be_pasted_into_a_test() -> None:
    plan = random_network_plan(5, seconds=60, every=5)
    assert eval(repr(plan), {**vars(testing), "Status": Status}) == plan
    assert repr(FaultPlan()) == "FaultPlan()"


def test_a_seed_gives_the_same_plan_and_another_seed_another() -> None:
    for random_plan in (random_network_plan, random_server_plan):
        plans = [random_plan(seed, seconds=600, every=10) for seed in (1, 1, 2)]
        assert plans[0] == plans[1] != plans[2]
        assert plans[0].timed == sorted(plans[0].timed, key=lambda fault: fault.at)


def test_a_plan_tells_faults_of_calls_from_those_at_a_moment() -> None:
    plan = FaultPlan((Fail("Ack", 2), BlackHole(3.0, 1.0), Delay("Ack", 2), DropConnection(1.0)))
    assert plan.of_calls == [Fail("Ack", 2), Delay("Ack", 2)]
    assert plan.timed == [DropConnection(1.0), BlackHole(3.0, 1.0)]


def test_random_plans_have_every_kind_of_fault() -> None:
    network = random_network_plan(3, seconds=2000, every=5)
    server = random_server_plan(3, seconds=2000, every=20)
    kinds = {type(fault) for fault in (*network.faults, *server.faults)}
    assert kinds == {
        BlackHole, Delay, DropConnection, Fail, JumpServerClock, LoseLease, LoseReply,
        RestartServer,
    }  # fmt: skip
    steady = random_server_plan(3, seconds=2000, every=20, jumps=False)
    assert {type(fault) for fault in steady.faults} == {RestartServer}


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Fail("ack"), ValueError, "rpc must be one of .*Ack, Nack.*, not 'ack'"),
        (lambda: LoseReply("Ack", nth=0), ValueError, "nth must be between 1 and .*, not 0"),
        (lambda: Fail("Ack", times=0), ValueError, "times must be between 1 and .*, not 0"),
        (lambda: Delay("Ack", request=-1), ValueError, "request must be at least 0 s, not -1"),
        (lambda: Delay("Ack", reply="1"), TypeError, "reply must be seconds"),
        (lambda: DropConnection(-1), ValueError, "at must be at least 0 s, not -1"),
        (lambda: DropConnection("1"), TypeError, "at must be seconds or a timedelta, not str"),
        (lambda: BlackHole(0, -1), ValueError, "seconds must be at least 0 s, not -1"),
        (lambda: RestartServer(0, -1), ValueError, "down must be at least 0 s, not -1"),
        (lambda: LoseLease(0, by="theft"), ValueError, "by must be 'expiry' or 'ack', not 'theft'"),
        (lambda: FaultPlan(Fail("Ack")), TypeError, "faults must be a tuple of faults, not Fail"),
        (lambda: FaultPlan(("Ack",)), TypeError, "faults must be a tuple of faults, but one is 'A"),
    ],
)
def test_a_fault_that_can_never_happen_is_refused(
    make: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make()


def test_a_plan_of_a_list_is_a_value_as_well() -> None:
    assert FaultPlan([DropConnection(timedelta(minutes=1))]) == FaultPlan((DropConnection(60),))  # type: ignore[arg-type]
