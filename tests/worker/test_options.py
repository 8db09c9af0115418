"""Options are checked when the worker is made; errors name the option and its limit."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import trio

from sepp_trio import Worker
from tests.worker.bench import Bench
from tests.worker.helpers import at_once, running, sleeper


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wait_timeout": 0}, "wait_timeout must be more than 0 s"),
        ({"wait_timeout": -1}, "wait_timeout must be more than 0 s"),
        ({"wait_timeout": 0.0005}, "wait_timeout must be at least 0.001 s"),
        ({"max_jobs": 0}, "max_jobs must be between 1"),
        ({"max_in_flight": 0}, "max_in_flight must be between 1"),
        ({"max_in_flight": -1}, "max_in_flight must be between 1"),
        ({"auto_extend_interval": 0}, "auto_extend_interval must be more than 0 s"),
        ({"auto_extend_interval": 30}, "auto_extend_interval must be shorter than lease_duration"),
        ({"auto_extend_interval": 2_592_000}, r"lease_duration \(30 s\), not 2592000$"),
        ({"reserve_error_backoff": 0}, "reserve_error_backoff must be more than 0 s"),
        ({"worker_id": ""}, "worker_id must not be empty"),
        ({"handler_timeout": 0}, "handler_timeout must be more than 0 s"),
        ({"shutdown_grace": -1}, "shutdown_grace must be at least 0 s"),
        ({"on_fatal": "ignore"}, "on_fatal must be 'retry' or 'raise', not 'ignore'"),
    ],
)
async def test_a_value_out_of_range_is_refused(
    bench: Bench, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        bench.worker(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"auto_extend": 1}, "auto_extend must be a bool, not int"),
        ({"max_in_flight": 2.5}, "max_in_flight must be an int"),
        ({"max_in_flight": True}, "max_in_flight must be an int"),
        ({"wait_timeout": "5"}, "wait_timeout must be seconds or a timedelta"),
        ({"worker_id": 7}, "worker_id must be a string"),
    ],
)
async def test_a_value_of_another_type_is_refused(
    bench: Bench, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        bench.worker(**options)


async def test_queues_and_lease_are_checked(bench: Bench) -> None:
    with pytest.raises(ValueError, match="at least one queue"):
        Worker(bench.client, [], 30)
    with pytest.raises(ValueError, match="queues at index 1"):
        Worker(bench.client, ["a", ""], 30)
    with pytest.raises(TypeError, match="queues must be a sequence of names"):
        Worker(bench.client, "emails", 30)
    with pytest.raises(ValueError, match="lease_duration must be more than 0 s"):
        Worker(bench.client, ["a"], 0)
    with pytest.raises(TypeError, match="client must be a SeppClient, not str"):
        Worker("localhost:50051", ["a"], 30)  # type: ignore[arg-type]


async def test_timedeltas_do_as_well(bench: Bench) -> None:
    worker = Worker(
        bench.client,
        ["emails"],
        timedelta(minutes=1),
        wait_timeout=timedelta(seconds=2),
        handler_timeout=timedelta(seconds=3),
        shutdown_grace=timedelta(seconds=4),
    )
    worker.handle("t", sleeper(1000), timeout=timedelta(seconds=7))
    async with running(worker):
        await bench.put("t", max_attempts=1)
        await bench.settled()
    [request, *_] = bench.asked("Reserve")
    assert (request.lease_duration, request.wait_timeout) == ((60, 0), (2, 0))
    assert bench.jobs()[0].nack_reasons == ("handler timed out after 7 s",)


async def test_the_default_worker_id_tells_workers_apart(bench: Bench) -> None:
    names = {Worker(bench.client, ["q"], 30).worker_id for _ in range(5)}
    assert len(names) == 5
    host, pid, unique = names.pop().rsplit("-", 2)
    assert host
    assert pid.isdigit()
    assert len(unique) == 8


async def test_a_worker_without_a_handler_does_not_run(bench: Bench) -> None:
    with pytest.raises(RuntimeError, match="no handler"):
        await bench.worker().run()


async def test_a_worker_runs_once(bench: Bench) -> None:
    async with bench.running(at_once) as worker:
        with pytest.raises(RuntimeError, match="runs once"):
            await worker.run()
        worker.shutdown()
    with pytest.raises(RuntimeError, match="runs once"):
        await worker.run()


@pytest.mark.parametrize(("grace", "error"), [(-1, ValueError), ("1", TypeError)])
async def test_a_grace_is_checked(bench: Bench, grace: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="grace must be"):
        bench.worker().shutdown(grace)


async def test_a_lease_longer_than_the_servers_limit_is_warned_of(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench.running(at_once, 900):
        pass
    assert "the server grants leases of 300 s, not the 900 s asked" in caplog.text


async def test_statistics_show_where_the_worker_stands(bench: Bench) -> None:
    worker = bench.worker(9, max_in_flight=4, auto_extend=True)
    worker.handle("t", sleeper(10))
    assert worker.statistics().state == "new"
    async with running(worker):
        await bench.put(*["t"] * 3)
        await trio.sleep(5)
        statistics = worker.statistics()
        assert (statistics.state, statistics.in_flight, statistics.received) == ("running", 3, 3)
        assert statistics.max_in_flight == 4
        assert statistics.extends >= 3
    statistics = worker.statistics()
    assert (statistics.state, statistics.acked, statistics.in_flight) == ("stopped", 3, 0)
    with pytest.raises(AttributeError):
        statistics.acked = 7  # type: ignore[misc]
