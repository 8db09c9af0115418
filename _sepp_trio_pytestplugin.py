"""pytest fixtures: a broker in memory, a client of it, and workers on it.

pytest loads this module in every run in an environment that has sepp_trio, whether or not a test
needs it. So it is a module of its own, beside the package: it imports pytest and nothing else
until one of its fixtures is used.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sepp_trio.broker import BrokerConfig
    from sepp_trio.client import SeppClient
    from sepp_trio.testing import RecordingBroker, WorkerStarter

_ASYNC = ("sepp_broker", "sepp_client", "sepp_worker")


@pytest.fixture
def sepp_config() -> BrokerConfig | None:
    """The settings of ``sepp_broker``, the defaults if ``None``; there to be overridden."""
    return None


@pytest.fixture
def _sepp_on_trio(request: pytest.FixtureRequest) -> None:
    """Says what is missing, where the async fixtures cannot work."""
    problem = _problem(request)
    if problem is not None:
        # The first is the one that the test, or the test's own fixture, has asked for.
        asked = next((name for name in request.fixturenames if name in _ASYNC), _ASYNC[0])
        pytest.fail(f"the fixture {asked} {problem}", pytrace=False)


@pytest.fixture
async def sepp_broker(
    _sepp_on_trio: None, sepp_config: BrokerConfig | None
) -> AsyncIterator[RecordingBroker]:
    """A broker in memory that keeps the history of every job."""
    from sepp_trio.testing import open_recording_broker

    async with open_recording_broker(config=sepp_config) as broker:
        yield broker


@pytest.fixture
async def sepp_client(sepp_broker: RecordingBroker) -> AsyncIterator[SeppClient]:
    """A client of ``sepp_broker``."""
    async with sepp_broker.open_client() as client:
        yield client


@pytest.fixture
async def sepp_worker(
    sepp_broker: RecordingBroker, sepp_client: SeppClient
) -> AsyncIterator[WorkerStarter]:
    """Starts workers on ``sepp_client``; they drain when the test has ended.

    ``await sepp_worker("emails", {"welcome": welcome}, max_in_flight=1)``, or
    ``await sepp_worker.start(worker)`` for one that is made elsewhere.
    """
    from sepp_trio.testing import open_worker_starter

    async with open_worker_starter(sepp_broker, sepp_client) as starter:
        yield starter


def _problem(request: pytest.FixtureRequest) -> str | None:
    plugins = request.config.pluginmanager
    if not (plugins.hasplugin("trio") or plugins.hasplugin("pytest_trio.plugin")):
        return "needs pytest-trio, which is not there: pip install 'sepp-trio[testing]'"
    test = request.node
    if test.get_closest_marker("trio") is not None:
        return None
    function = getattr(test, "obj", None)
    function = getattr(getattr(function, "hypothesis", None), "inner_test", function)
    if not inspect.iscoroutinefunction(function):
        return f"is for async tests, and {test.name} is not async"
    return (
        f"needs Trio, and {test.name} is not run by it: mark it with @pytest.mark.trio, or set"
        " trio_mode = true in the pytest configuration"
    )
