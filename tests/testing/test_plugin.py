"""The pytest fixtures, in runs of their own: in this process, where that shows the same."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

HEAD = """
import math
import time

import pytest
import trio

from sepp_trio import BrokerConfig, EnqueueRequest, LimitsConfig, Worker

REQUEST = EnqueueRequest("emails", "welcome")
"""


def run(pytester: pytest.Pytester, source: str, *arguments: str, ini: str = "") -> pytest.RunResult:
    pytester.makeini(f"[pytest]\nfilterwarnings = error\n{ini}")
    pytester.makepyfile(HEAD + source)
    return pytester.runpytest_inprocess("-p", "no:randomly", *arguments)


def test_the_fixtures_work_in_trio_mode(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
async def test_a_job_is_handled(sepp_broker, sepp_client, sepp_worker, autojump_clock):
    seen = []

    async def welcome(payload, ctx):
        await trio.sleep(3000)
        seen.append(ctx.id)

    ack = await sepp_client.enqueue(REQUEST)
    worker = await sepp_worker("emails", {"welcome": welcome}, auto_extend=True, max_in_flight=3)
    assert isinstance(worker, Worker)
    assert worker.max_in_flight == 3
    await sepp_broker.settled()
    assert [job.id for job in sepp_broker.jobs("emails").acked] == seen == [ack.job_id]

async def test_a_worker_of_the_programs_own_is_started(sepp_client, sepp_broker, sepp_worker,
                                                       autojump_clock):
    worker = Worker(sepp_client, ["emails"], 30)
    worker.handle("welcome", lambda payload, ctx: None)
    assert await sepp_worker.start(worker) is worker
    await sepp_client.enqueue(REQUEST)
    await sepp_broker.settled()

async def test_several_workers(sepp_broker, sepp_client, sepp_worker, autojump_clock):
    async def welcome(payload, ctx):
        await sepp_client.enqueue(EnqueueRequest("mails", "next"))

    async def after(payload, ctx):
        pass

    await sepp_worker(["emails", "others"], {"welcome": welcome})
    await sepp_worker("mails", {"next": after})
    await sepp_client.enqueue(REQUEST)
    await sepp_broker.until(lambda jobs: len(jobs.acked) == 2)

async def test_handlers_may_finish_when_the_test_has_ended(
    sepp_broker, sepp_client, sepp_worker, autojump_clock, drained
):
    async def welcome(payload, ctx):
        await trio.sleep(4)
        drained.append("finished")

    await sepp_client.enqueue(REQUEST)
    await sepp_worker("emails", {"welcome": welcome})
    await sepp_broker.until(lambda jobs: jobs.leased)

async def test_but_not_forever(
    sepp_broker, sepp_client, sepp_worker, autojump_clock, drained
):
    async def welcome(payload, ctx):
        try:
            await trio.sleep_forever()
        finally:
            drained.append("interrupted")

    await sepp_client.enqueue(REQUEST)
    await sepp_worker("emails", {"welcome": welcome}, auto_extend=True)
    await sepp_broker.until(lambda jobs: jobs.leased)

async def test_unless_they_were_given_more_time(
    sepp_broker, sepp_client, sepp_worker, autojump_clock, drained
):
    async def welcome(payload, ctx):
        await trio.sleep(20)
        drained.append("finished late")

    await sepp_client.enqueue(REQUEST)
    await sepp_worker("emails", {"welcome": welcome}, shutdown_grace=60)
    await sepp_broker.until(lambda jobs: jobs.leased)

def test_what_happened(drained):
    assert drained == ["finished", "interrupted", "finished late"]

@pytest.fixture(scope="module")
def drained():
    return []

async def test_on_the_real_clock_nobody_waits_for_idle_workers(
    sepp_broker, sepp_client, sepp_worker
):
    await sepp_worker(
        "emails", {"welcome": lambda payload, ctx: None}, wait_timeout=60, shutdown_grace=50
    )
    await sepp_client.enqueue(REQUEST)
    await sepp_broker.settled()

async def test_a_thread_holds_the_clock(sepp_broker, sepp_client, sepp_worker, autojump_clock):
    await sepp_worker("emails", {"welcome": lambda payload, ctx: time.sleep(0.1)})
    await sepp_client.enqueue(REQUEST)
    await sepp_broker.settled()
    [job] = sepp_broker.jobs().acked
    assert job.deliveries == 1
    assert job.done_at - job.enqueued_at < 5

class TestWithSettings:
    @pytest.fixture
    def sepp_config(self):
        return BrokerConfig(limits=LimitsConfig(default_priority=7))

    async def test_the_broker_has_them(self, sepp_client, sepp_broker, autojump_clock):
        await sepp_client.enqueue(REQUEST)
        assert sepp_broker.jobs()[0].priority == 7
""",
        "--durations=0",
        ini="trio_mode = true",
    )
    result.assert_outcomes(passed=10)
    [line] = [line for line in result.outlines if "call" in line and "on_the_real_clock" in line]
    assert float(line.split("s ")[0]) < 40


def test_the_fixtures_work_with_the_mark(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
@pytest.mark.trio
async def test_it(sepp_broker, sepp_client, sepp_worker, autojump_clock):
    await sepp_client.enqueue(REQUEST)
    await sepp_worker("emails", {"welcome": lambda payload, ctx: None})
    await sepp_broker.settled()
""",
    )
    result.assert_outcomes(passed=1)


def test_it_is_said_what_is_missing(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
def test_plain(sepp_broker):
    pass

def test_plain_with_a_worker(sepp_worker):
    pass

@pytest.fixture
def emails(tmp_path, sepp_client):
    pass

def test_plain_by_a_fixture(emails):
    pass

async def test_unmarked(sepp_client):
    pass

@pytest.mark.trio
async def test_plain_part(sepp_config):
    assert sepp_config is None
""",
    )
    result.assert_outcomes(passed=1, errors=4)
    result.stdout.fnmatch_lines(
        [
            "the fixture sepp_broker is for async tests, and test_plain is not async",
            "the fixture sepp_worker is for async tests, and test_plain_with_a_worker is not async",
            "the fixture sepp_client is for async tests, and test_plain_by_a_fixture is not async",
            "the fixture sepp_client needs Trio, and test_unmarked is not run by it: mark it with"
            " @pytest.mark.trio, or set trio_mode = true in the pytest configuration",
        ]
    )


def test_it_is_said_that_pytest_trio_is_missing(pytester: pytest.Pytester) -> None:
    result = run(pytester, "async def test_it(sepp_worker):\n    pass\n", "-p", "no:trio")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["the fixture sepp_worker needs pytest-trio, which is not there: pip install 'sepp-trio*"]
    )


def test_the_error_of_a_worker_is_the_tests(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
async def leave(payload, ctx):
    raise SystemExit(3)

async def test_a_worker_that_leaves(sepp_client, sepp_worker, autojump_clock):
    await sepp_worker("emails", {"welcome": leave})
    await sepp_client.enqueue(REQUEST)
    await trio.sleep_forever()

async def test_one_without_handlers(sepp_worker, autojump_clock):
    await sepp_worker("emails", {})

async def test_a_wrong_option(sepp_worker, autojump_clock):
    await sepp_worker("emails", {"welcome": leave}, lease_duration=-1)
""",
        ini="trio_mode = true",
    )
    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(
        ["*SystemExit: 3", "*RuntimeError: the worker has no handler*", "*lease_duration must be*"]
    )


def test_a_run_that_does_not_use_them_does_not_load_them(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
import sys

def test_modules():
    assert "_sepp_trio_pytestplugin" in sys.modules
    for name in ("sepp_trio", "trio", "hypothesis", "grpclib"):
        assert name not in sys.modules
"""
    )
    others = ["no:trio", "no:hypothesispytest", "no:randomly", "no:anyio"]
    arguments = [part for other in others for part in ("-p", other)]
    pytester.runpytest_subprocess(*arguments, timeout=50).assert_outcomes(passed=1)


def test_it_can_be_turned_off(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        "async def test_it(sepp_broker):\n    pass\n",
        "-p",
        "no:sepp_trio",
        ini="trio_mode = true",
    )
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*fixture 'sepp_broker' not found"])


def test_handlers_without_job_types_are_refused(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
async def test_a_list_of_handlers(sepp_worker):
    with pytest.raises(TypeError, match="handlers must be a mapping of .*, not list"):
        await sepp_worker("emails", [lambda payload, ctx: None])
""",
        ini="trio_mode = true",
    )
    result.assert_outcomes(passed=1)
