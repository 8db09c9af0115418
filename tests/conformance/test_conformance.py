"""One suite, two servers, two clients: every scenario against every pair of them.

The embedded server comes with either of its stores: in memory, and in a file.

A scenario's outcome is the same whichever server answers: nothing here asks which one it is.
The scenarios of a pair run side by side when the first of them is asked for (see runner.py);
each test then reports one of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.configs import DRIVERS
from tests.conformance.registry import SCENARIOS
from tests.conformance.runner import LONGEST, run_scenarios
from tests.conformance.servers import EMBEDDED, EMBEDDED_FILE, HOW_TO_GET_IT, REAL, real_binary
from tests.conformance.unobserved import SKIPPED

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conformance.runner import Outcome, Servers

PAIRS = [
    (EMBEDDED, "sepp_trio"),
    (EMBEDDED, "sepp_py"),
    (EMBEDDED_FILE, "sepp_trio"),
    (REAL, "sepp_trio"),
    (REAL, "sepp_py"),
]
_WITHOUT_REAL = pytest.mark.skipif(real_binary() is None, reason=HOW_TO_GET_IT)
_outcomes: dict[tuple[str, str], dict[str, Outcome]] = {}


def _parameters() -> list[object]:
    return [
        pytest.param(
            kind,
            driver,
            scenario.name,
            id=f"{kind}-{driver}-{scenario.name}",
            marks=[
                *([pytest.mark.real_server, _WITHOUT_REAL] if kind == REAL else []),
                *(
                    [pytest.mark.skip(reason=f"{driver}: {SKIPPED[driver][scenario.name]}")]
                    if scenario.name in SKIPPED[driver]
                    else []
                ),
            ],
        )
        for kind, driver in PAIRS
        for scenario in SCENARIOS.values()
        # These have a file in any case.
        if not (kind == EMBEDDED_FILE and scenario.own_server)
    ]


# The first test of a pair waits for all of the pair's scenarios; each has its own limit inside.
@pytest.mark.timeout(LONGEST + 60)
@pytest.mark.parametrize(("kind", "driver", "name"), _parameters())
def test_conformance(
    kind: str,
    driver: str,
    name: str,
    conformance_servers: Servers,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    pair = (kind, driver)
    if pair not in _outcomes:
        _outcomes[pair] = run_scenarios(
            conformance_servers, kind, driver, _asked_for(request.session, pair)
        )
    outcome = _outcomes[pair][name]
    for failure in outcome.during_stalls:
        record_property("failed during a stall", repr(failure))
    if outcome.error is not None:
        raise outcome.error


def _asked_for(session: pytest.Session, pair: tuple[str, str]) -> list[str]:
    """The selected scenarios of a pair: `-k one` runs one."""
    names: list[str] = []
    for item in session.items:
        if isinstance(item, pytest.Function) and item.originalname == "test_conformance":
            values = item.callspec.params
            if (values["kind"], values["driver"]) == pair and not any(
                mark.name == "skip" for mark in item.iter_markers()
            ):
                names.append(str(values["name"]))
    return names


def test_only_scenarios_that_exist_are_skipped() -> None:
    assert set(SKIPPED) == set(DRIVERS)
    for names in SKIPPED.values():
        assert set(names) <= set(SCENARIOS)
