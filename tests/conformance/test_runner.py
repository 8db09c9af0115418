"""The runner itself: a failure counts, but on a machine that stood still it is tried again."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import pytest

from tests.conformance.configs import DEFAULT, DRIVERS
from tests.conformance.registry import SCENARIOS, Env, Scenario
from tests.conformance.runner import TRIES, Outcome, run_scenarios
from tests.conformance.servers import EMBEDDED

if TYPE_CHECKING:
    from tests.conformance.runner import Servers


def hold_all_threads() -> None:
    """As if the machine stood still: a call that keeps the interpreter to itself."""
    ctypes.PyDLL(None).usleep(900_000)


class Failing:
    """A scenario that fails so often, and during a stall if asked to."""

    def __init__(self, failures: int, *, stalled: bool) -> None:
        self.addresses: list[str] = []
        self._failures = failures
        self._stalled = stalled

    async def __call__(self, env: Env) -> None:
        await env.face.info()
        self.addresses.append(env.server.address)
        if len(self.addresses) <= self._failures:
            if self._stalled:
                await env.loop.in_thread(hold_all_threads)
                await env.sleep(0.1)
            raise ZeroDivisionError


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def outcome_of(
    scenario: Failing, driver: str, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> Outcome:
    monkeypatch.setitem(SCENARIOS, "failing", Scenario("failing", scenario, DEFAULT, False, 60.0))
    return run_scenarios(servers, EMBEDDED, driver, ["failing"])["failing"]


def test_a_failure_counts(
    driver: str, conformance_servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In each run, so that a stall of this very machine changes nothing.
    scenario = Failing(failures=TRIES, stalled=False)
    outcome = outcome_of(scenario, driver, conformance_servers, monkeypatch)
    assert isinstance(outcome.error, ZeroDivisionError)
    assert len(scenario.addresses) == 1 + len(outcome.during_stalls)


def test_after_a_failure_during_a_stall_a_server_of_its_own_decides(
    driver: str, conformance_servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = Failing(failures=1, stalled=True)
    outcome = outcome_of(scenario, driver, conformance_servers, monkeypatch)
    assert outcome.error is None
    assert [type(error) for error in outcome.during_stalls] == [ZeroDivisionError]
    first, second = scenario.addresses
    assert first != second


def test_a_failure_during_every_stall_counts(
    driver: str, conformance_servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = Failing(failures=TRIES, stalled=True)
    outcome = outcome_of(scenario, driver, conformance_servers, monkeypatch)
    assert isinstance(outcome.error, ZeroDivisionError)
    assert len(outcome.during_stalls) == TRIES - 1
