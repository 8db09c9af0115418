"""enqueue_many: results in order, bounded memory, safe to leave at any point."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import pytest
import trio
from grpclib.const import Status
from trio.testing import MockClock

from sepp_trio import errors
from sepp_trio.client import SeppClient
from sepp_trio.client._enqueue_many import MAX_BATCH_BYTES
from sepp_trio.retry import RetryPolicy
from sepp_trio.types import EnqueueAck, EnqueueRequest, JobRejection, Payload, QueueFull
from sepp_trio.wire import records
from tests.client.fake import FakeServer, never


def requests(number: int, *, keyed: bool = False) -> Iterator[EnqueueRequest]:
    for index in range(number):
        key = f"key-{index}" if keyed else None
        yield EnqueueRequest("q", f"type-{index}", idempotency_key=key)


async def arriving(number: int, pause: float = 0) -> AsyncIterator[EnqueueRequest]:
    for request in requests(number):
        await trio.sleep(pause)
        yield request


def result(job: records.EnqueueRequest) -> records.JobResult:
    """Stored under an id that is its type; every tenth is refused."""
    if job.job_type.endswith("9"):
        full = records.QueueFull("q", 10)
        return records.JobResult(rejection=records.JobRejection(queue_full=full))
    return records.JobResult(success=records.EnqueueResponse(job.job_type))


async def store(request: records.EnqueueBatchRequest) -> records.EnqueueBatchResponse:
    return records.EnqueueBatchResponse([result(job) for job in request.jobs])


async def store_slowly(request: records.EnqueueBatchRequest) -> records.EnqueueBatchResponse:
    """The sooner it was sent, the later it is answered."""
    first = int(request.jobs[0].job_type.removeprefix("type-"))
    await trio.sleep(10 / (first + 1))
    return await store(request)


async def collect(
    many: AsyncIterator[EnqueueAck | JobRejection], into: list[EnqueueAck | JobRejection]
) -> None:
    """Keeps what came before an error."""
    async for outcome in many:
        into.append(outcome)  # noqa: PERF401


async def store_the_first(request: records.EnqueueBatchRequest) -> records.EnqueueBatchResponse:
    """The first batch of an import; the others are never answered."""
    return await (store if request.jobs[0].job_type == "type-0" else never)(request)


def expected(number: int) -> list[EnqueueAck | JobRejection]:
    return [
        QueueFull("q", 10) if index % 10 == 9 else EnqueueAck(f"type-{index}", False)
        for index in range(number)
    ]


@pytest.fixture
def storing(server: FakeServer) -> FakeServer:
    server.script("EnqueueBatch", store)
    return server


@pytest.mark.parametrize("number", [0, 1, 9, 10, 11, 95])
async def test_results_come_in_order(storing: FakeServer, client: SeppClient, number: int) -> None:
    for source in (requests(number), list(requests(number)), arriving(number)):
        many = client.enqueue_many(source, batch_size=10, in_flight=3)
        assert [outcome async for outcome in many] == expected(number)
    sizes = [len(request.jobs) for request in storing.requests("EnqueueBatch")]
    assert sum(sizes) == 3 * number
    assert max(sizes, default=0) <= 10


async def test_order_is_kept_when_answers_overtake_each_other(
    autojump_clock: MockClock, server: FakeServer, client: SeppClient
) -> None:
    server.script("EnqueueBatch", store_slowly)
    many = client.enqueue_many(requests(50), batch_size=5, in_flight=10)
    assert [outcome async for outcome in many] == expected(50)
    assert trio.current_time() == 10


async def test_a_channel_is_a_source(storing: FakeServer, client: SeppClient) -> None:
    send, receive = trio.open_memory_channel[EnqueueRequest](0)

    async def produce() -> None:
        async with send:
            for request in requests(30):
                await send.send(request)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(produce)
        many = client.enqueue_many(receive, batch_size=7)
        assert [outcome async for outcome in many] == expected(30)


async def test_memory_is_bounded_by_the_batches_in_flight(
    storing: FakeServer, client: SeppClient
) -> None:
    pulled = 0

    def source() -> Iterator[EnqueueRequest]:
        nonlocal pulled
        for pulled, request in enumerate(requests(1000), 1):  # noqa: B007
            yield request

    taken = 0
    async for _ in client.enqueue_many(source(), batch_size=10, in_flight=3):
        taken += 1
        assert pulled - taken <= 3 * 10 + 10
        assert len(storing.requests("EnqueueBatch")) * 10 <= pulled
    assert taken == 1000


async def test_large_jobs_make_small_batches(storing: FakeServer, client: SeppClient) -> None:
    big = EnqueueRequest("q", "type-0", Payload(b"x" * 2**20, "raw"), custom={"a": "b", "c": 1})
    huge = EnqueueRequest("q", "type-0", Payload(b"x" * 5 * 2**20, "raw"))
    results = [outcome async for outcome in client.enqueue_many([big] * 11 + [huge, big])]
    assert len(results) == 13
    sizes = [
        sum(len(job.payload.data) for job in request.jobs)
        for request in storing.requests("EnqueueBatch")
    ]
    assert sorted(sizes) == [2**20, 2 * 2**20, 3 * 2**20, 3 * 2**20, 3 * 2**20, 5 * 2**20]
    assert MAX_BATCH_BYTES == 4 * 2**20


async def test_results_come_before_a_slow_source_ends(
    autojump_clock: MockClock, storing: FakeServer, client: SeppClient
) -> None:
    many = client.enqueue_many(arriving(10, pause=1), batch_size=2, in_flight=8)
    times = [trio.current_time() async for _ in many]
    assert times == [4, 4, 6, 6, 8, 8, 10, 10, 10, 10]


async def test_it_may_be_left_at_any_point(
    autojump_clock: MockClock, storing: FakeServer, client: SeppClient
) -> None:
    for stop in range(25):
        taken = 0
        async for _ in client.enqueue_many(requests(100), batch_size=10, in_flight=2):
            if taken == stop:
                break
            taken += 1
    many = client.enqueue_many(requests(100))
    await many.__anext__()
    del many
    gc.collect()
    await trio.testing.wait_all_tasks_blocked()
    assert storing.open_calls == 0
    assert client.statistics().calls_open == 0


async def test_it_may_be_left_by_an_exception_and_by_a_cancel(
    autojump_clock: MockClock, server: FakeServer, client: SeppClient
) -> None:
    server.script("EnqueueBatch", store_the_first)

    async def raise_inside() -> None:
        async for _ in client.enqueue_many(requests(100), batch_size=10):
            raise KeyError

    with pytest.raises(KeyError):
        await raise_inside()
    with trio.move_on_after(1) as scope:
        async for _ in client.enqueue_many(requests(100), batch_size=10):
            pass
    assert scope.cancelled_caught
    assert (await client.get_server_info()).server_version


async def test_a_step_that_was_cancelled_can_be_repeated(
    autojump_clock: MockClock, server: FakeServer, client: SeppClient
) -> None:
    server.script("EnqueueBatch", store_slowly)
    send, receive = trio.open_memory_channel[EnqueueRequest](0)

    async def produce() -> None:
        async with send:
            for request in requests(20):
                await trio.sleep(0.3)
                await send.send(request)

    results: list[EnqueueAck | JobRejection] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(produce)
        many = client.enqueue_many(receive, batch_size=3, in_flight=2)
        while True:
            with trio.move_on_after(0.25):
                try:
                    results.append(await many.__anext__())
                except StopAsyncIteration:
                    break
    assert results == expected(20)
    assert sum(len(request.jobs) for request in server.requests("EnqueueBatch")) == 20


async def test_every_step_is_a_cancel_point(storing: FakeServer, client: SeppClient) -> None:
    many = client.enqueue_many(requests(3))
    assert await many.__anext__() == EnqueueAck("type-0", False)
    with trio.CancelScope() as scope:
        scope.cancel()
        await many.__anext__()
    assert scope.cancelled_caught
    assert [outcome async for outcome in many] == expected(3)[1:]
    with trio.testing.assert_checkpoints(), pytest.raises(StopAsyncIteration):
        await many.__anext__()


async def test_a_failure_of_the_source_comes_after_the_results_before_it(
    storing: FakeServer, client: SeppClient
) -> None:
    def broken() -> Iterator[EnqueueRequest]:
        yield from requests(25)
        raise OSError("no more rows")

    results: list[EnqueueAck | JobRejection] = []
    many = client.enqueue_many(broken(), batch_size=10)
    with pytest.raises(OSError, match="no more rows"):
        await collect(many, results)
    assert results == expected(25)
    assert [outcome async for outcome in many] == []


async def test_what_is_no_request_is_refused_by_its_index(
    storing: FakeServer, client: SeppClient
) -> None:
    results: list[EnqueueAck | JobRejection] = []
    many = client.enqueue_many([*requests(12), "row"], batch_size=10)  # type: ignore[list-item]
    with pytest.raises(TypeError, match="requests at index 12 must be an EnqueueRequest, not str"):
        await collect(many, results)
    assert results == expected(12)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"batch_size": 0}, ValueError, "batch_size must be between 1"),
        ({"in_flight": 0}, ValueError, "in_flight must be between 1"),
        ({"requests": 5}, TypeError, "requests must be an iterable or async iterable, not int"),
    ],
)
async def test_wrong_arguments_are_refused_at_the_call(
    client: SeppClient, arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        client.enqueue_many(**{"requests": [], **arguments})


@pytest.mark.parametrize(("keyed", "status"), [(True, Status.ABORTED), (False, Status.UNAVAILABLE)])
async def test_a_passing_failure_is_repeated_in_order(
    autojump_clock: MockClock, server: FakeServer, keyed: bool, status: Status
) -> None:
    server.script("EnqueueBatch", store, status, status, store)
    async with server.client(retry_policy=RetryPolicy(max_attempts=4)) as client:
        many = client.enqueue_many(requests(40, keyed=keyed), batch_size=10, in_flight=2)
        assert [outcome async for outcome in many] == expected(40)
    assert len(server.requests("EnqueueBatch")) == 6


@pytest.mark.parametrize(
    ("keyed", "answer", "calls"),
    [
        (False, Status.ABORTED, 2),
        (True, Status.INTERNAL, 2),
        (True, Status.ABORTED, 4),
        (True, records.EnqueueBatchResponse(), 2),
    ],
)
async def test_a_failure_ends_the_iteration_after_the_results_before_it(
    autojump_clock: MockClock, server: FakeServer, keyed: bool, answer: Any, calls: int
) -> None:
    server.script("EnqueueBatch", store, answer)
    async with server.client(retry_policy=RetryPolicy(max_attempts=3)) as client:
        many = client.enqueue_many(requests(100, keyed=keyed), batch_size=10, in_flight=1)
        results: list[EnqueueAck | JobRejection] = []
        with pytest.raises(errors.ClientError):
            await collect(many, results)
        assert results == expected(10)
        assert [outcome async for outcome in many] == []
    assert len(server.requests("EnqueueBatch")) == calls


async def test_a_cancelled_pause_does_not_lose_the_batch(
    autojump_clock: MockClock, server: FakeServer
) -> None:
    server.script("EnqueueBatch", Status.UNAVAILABLE, store)
    policy = RetryPolicy(2, initial_backoff=10, jitter=False)
    async with server.client(retry_policy=policy) as client:
        many = client.enqueue_many(requests(5))
        with trio.move_on_after(3) as scope:
            await many.__anext__()
        assert scope.cancelled_caught
        assert [outcome async for outcome in many] == expected(5)


async def test_after_the_clients_block_it_says_so(storing: FakeServer) -> None:
    async with storing.client() as client:
        many = client.enqueue_many(requests(100), batch_size=10)
        await many.__anext__()
    with pytest.raises(errors.ClientClosedError):
        await many.__anext__()


async def test_a_client_that_ends_while_it_waits_says_so(
    autojump_clock: MockClock, storing: FakeServer
) -> None:
    async def iterate(client: SeppClient) -> None:
        with pytest.raises(errors.ClientClosedError):
            await collect(client.enqueue_many(arriving(10, pause=2), batch_size=2), [])

    async with trio.open_nursery() as nursery, storing.client() as client:
        nursery.start_soon(iterate, client)
        await trio.sleep(3)


async def test_an_async_generator_around_it_can_be_closed(
    storing: FakeServer, client: SeppClient
) -> None:
    async def jobs_only() -> AsyncIterator[str]:
        async for outcome in client.enqueue_many(requests(50), batch_size=10):
            if isinstance(outcome, EnqueueAck):
                yield outcome.job_id

    async with aclosing(jobs_only()) as ids:  # type: ignore[type-var]
        async for job_id in ids:
            assert job_id == "type-0"
            break


async def test_one_task_at_a_time_may_iterate(
    autojump_clock: MockClock, server: FakeServer, client: SeppClient
) -> None:
    server.script("EnqueueBatch", store_slowly)
    many = client.enqueue_many(requests(20), batch_size=5)
    outcomes: list[EnqueueAck | JobRejection] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(collect, many, outcomes)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.BusyResourceError):
            await many.__anext__()
    assert outcomes == expected(20)


async def test_a_request_that_was_spoilt_after_its_check_is_refused_and_holds_up_nothing(
    storing: FakeServer, client: SeppClient
) -> None:
    spoilt = EnqueueRequest("q", "type-0")
    spoilt.custom["late"] = object()  # type: ignore[index]
    many = client.enqueue_many([spoilt, *requests(3)], batch_size=1)
    with pytest.raises(ValueError, match="PrimitiveValue"):
        await many.__anext__()
    assert [outcome async for outcome in many] == expected(3)


async def test_a_source_that_lacks_the_other_half_of_the_protocol_does(
    storing: FakeServer, client: SeppClient
) -> None:
    class Ids:
        """An iterable whose iterator can do nothing but give the next."""

        def __iter__(self) -> Any:
            class Bare:
                left = requests(11)

                def __next__(self) -> EnqueueRequest:
                    return next(self.left)

            return Bare()

    many = client.enqueue_many(Ids(), batch_size=5)
    assert [outcome async for outcome in many] == expected(11)


async def test_a_batch_cut_by_size_goes_on_with_the_job_that_did_not_fit(
    storing: FakeServer, client: SeppClient
) -> None:
    big = Payload(b"x" * (MAX_BATCH_BYTES // 2), "raw")
    jobs = [EnqueueRequest("q", f"type-{index}", big) for index in range(5)]

    async def arrive() -> AsyncIterator[EnqueueRequest]:
        for job in jobs:
            await trio.lowlevel.checkpoint()
            yield job

    for source in (jobs, arrive()):
        many = client.enqueue_many(source, batch_size=2)
        assert [outcome async for outcome in many] == expected(5)
    assert [len(request.jobs) for request in storing.requests("EnqueueBatch")] == [1] * 10
