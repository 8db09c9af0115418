"""``assert_no_leaks``: each kind of thing that can be left behind is found, and only that."""

from __future__ import annotations

import re
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio

from sepp_trio import EnqueueRequest, JobCtx, Payload, ReserveOptions, Worker, open_client
from sepp_trio.testing import (
    FaultPlan,
    assert_no_leaks,
    open_fault_proxy,
    open_recording_broker,
    run_handler,
)


@asynccontextmanager
async def leaking(
    *lines: str, limiters: Sequence[trio.CapacityLimiter] = ()
) -> AsyncIterator[None]:
    """A block of which ``assert_no_leaks`` complains in these lines, given as patterns."""
    with pytest.raises(AssertionError) as caught:
        async with assert_no_leaks(*limiters):
            yield
    found = str(caught.value).splitlines()
    assert found[0] == "the block has left behind:"
    assert len(found) == 1 + len(lines), found
    for text, line in zip(found[1:], lines, strict=True):
        assert re.search(line, text), text


async def at_once(payload: Payload | None, ctx: JobCtx) -> None:
    pass


async def test_a_block_that_cleans_up_passes() -> None:
    async with assert_no_leaks():
        async with open_recording_broker() as broker, broker.open_client() as client:
            await client.enqueue(EnqueueRequest("q", "t"))
            async with trio.open_nursery() as nursery:
                worker = Worker(client, ["q"], 30)
                worker.handle("t", at_once)
                await nursery.start(worker.run)
                await broker.settled()
                worker.shutdown()
        await run_handler(at_once)
        await trio.to_thread.run_sync(int)


async def test_what_was_there_before_may_stay() -> None:
    async with (
        open_recording_broker() as broker,
        broker.open_client() as client,
        trio.open_nursery() as nursery,
    ):
        await client.enqueue(EnqueueRequest("q", "t"))
        [job] = await client.reserve(ReserveOptions(["q"], 30))
        nursery.start_soon(trio.sleep_forever)
        limiter = trio.CapacityLimiter(1)
        async with limiter:
            await trio.testing.wait_all_tasks_blocked()
            async with assert_no_leaks(limiter):
                await client.extend(job, 60)
        nursery.cancel_scope.cancel()


async def test_connections_of_what_stays_may_come_and_go() -> None:
    async with (
        open_recording_broker() as broker,
        open_fault_proxy(broker._connect, FaultPlan()) as proxy,
        open_client(proxy.connect) as client,
    ):
        before = client.statistics().connections
        async with assert_no_leaks():
            proxy.drop_connections()
            await trio.sleep(1)
            await client.get_server_info()
        assert client.statistics().connections > before


async def test_an_exception_of_the_block_comes_out() -> None:
    async def fails(nursery: trio.Nursery) -> None:
        async with assert_no_leaks():
            nursery.start_soon(trio.sleep_forever)
            raise KeyError

    async with trio.open_nursery() as nursery:
        with pytest.raises(KeyError):
            await fails(nursery)
        nursery.cancel_scope.cancel()


async def test_a_task_is_found_with_its_line() -> None:
    async def left_behind() -> None:
        await trio.sleep_forever()  # here

    async with trio.open_nursery() as nursery:
        async with leaking("task .*left_behind, at .*test_leaks.* in left_behind: .*# here"):
            nursery.start_soon(left_behind)
        nursery.cancel_scope.cancel()


async def test_a_task_without_own_code_is_found_where_it_was_started() -> None:
    async with trio.open_nursery() as nursery:
        line = r"task trio\.sleep_forever, started at .*test_leaks.* in test_a_task.*: .*# here"
        async with leaking(line):
            nursery.start_soon(trio.sleep_forever)  # here
        nursery.cancel_scope.cancel()


async def test_a_client_and_a_broker_that_stay_open_are_found() -> None:
    async with (
        AsyncExitStack() as stack,
        leaking("a broker that is open", "a client that is open"),
    ):
        broker = await stack.enter_async_context(open_recording_broker())
        await stack.enter_async_context(broker.open_client())


async def test_a_server_that_goes_on_serving_is_found() -> None:
    async with open_recording_broker() as broker, trio.open_nursery() as nursery:
        async with leaking(r"task .*serve"):
            await nursery.start(broker.serve, "127.0.0.1:0")
        nursery.cancel_scope.cancel()


async def test_a_worker_that_goes_on_is_found() -> None:
    async with (
        open_recording_broker() as broker,
        broker.open_client() as client,
        trio.open_nursery() as nursery,
    ):
        worker = Worker(client, ["q"], 30)
        worker.handle("t", at_once)
        async with leaking(r"task .*Worker\.run"):
            await nursery.start(worker.run)
        worker.shutdown()


async def test_a_lease_is_found_and_named() -> None:
    async with (
        open_recording_broker() as broker,
        broker.open_client() as client,
        leaking(r"job .* \(send, attempt 1/3\) of queue 'q', leased"),
    ):
        await client.enqueue(EnqueueRequest("q", "send"))
        await client.reserve(ReserveOptions(["q"], 30))


@pytest.mark.trio(run=trio.run)
async def test_a_lease_that_a_client_holds_is_found_wherever_its_server_is(
    served_address: str,
) -> None:
    async with open_client(served_address) as client, AsyncExitStack() as stack:
        await client.enqueue(EnqueueRequest("leaks", "send"))
        [job] = await client.reserve(ReserveOptions(["leaks"], 30))
        async with leaking(f"job {job.id}, held by a client"):
            lease = await stack.enter_async_context(client.hold(job))
        await lease.ack()


async def test_a_thread_and_its_token_are_found() -> None:
    go_on = threading.Event()
    async with trio.open_nursery() as nursery:
        async with leaking(
            r"task .*run_sync", "1 thread at work", "1 token of the default thread limiter"
        ):
            nursery.start_soon(trio.to_thread.run_sync, go_on.wait)
            await trio.testing.wait_all_tasks_blocked()
        go_on.set()


async def test_tokens_of_a_limiter_given_are_found() -> None:
    limiter = trio.CapacityLimiter(3)
    async with leaking(r"2 tokens of <trio\.CapacityLimiter", limiters=[limiter]):
        await limiter.acquire_on_behalf_of("a")
        await limiter.acquire_on_behalf_of("b")
    limiter.release_on_behalf_of("a")
    limiter.release_on_behalf_of("b")


async def test_a_broker_that_fails_hides_nothing_else() -> None:
    async with open_recording_broker() as broker, trio.open_nursery() as nursery:
        async with leaking(r"task .*sleep_forever"):
            nursery.start_soon(trio.sleep_forever)
            broker._store.close()
        nursery.cancel_scope.cancel()
