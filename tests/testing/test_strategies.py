"""Strategies: what they draw is valid, what they are asked for is what they draw, and the smallest
example is the one that a person would write."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio
import trio.testing
from grpclib.const import Status
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument

from sepp_trio import EnqueueAck, EnqueueRequest, Job, Payload, ReserveOptions, open_broker
from sepp_trio.testing import (
    BlackHole,
    Delay,
    DropConnection,
    Fail,
    FaultPlan,
    JumpServerClock,
    LoseLease,
    LoseReply,
    RestartServer,
)
from sepp_trio.testing.strategies import (
    custom_maps,
    enqueue_requests,
    fault_plans,
    jobs,
    payloads,
    trace_contexts,
)

FEW = settings(max_examples=25)
SMALLEST = settings(max_examples=150, database=None, derandomize=True)
# What else could vary is not asked, and costs most of the time.
UNEXPLAINED = settings(SMALLEST, phases=[Phase.generate, Phase.shrink])
MIDNIGHT = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def smallest(strategy: st.SearchStrategy[Any], condition: Callable[[Any], Any]) -> Any:
    return find(strategy, condition, settings=UNEXPLAINED)


def anything(value: object) -> bool:
    return True


def has(kind: type) -> Callable[[FaultPlan], bool]:
    return lambda plan: any(isinstance(fault, kind) for fault in plan.faults)


# ---- What is drawn ----


def check(asked: EnqueueRequest, got: Job) -> None:
    assert (got.queue, got.job_type, got.payload) == (asked.queue, asked.job_type, asked.payload)
    assert got.custom == asked.custom
    assert [type(value) for _, value in sorted(got.custom.items())] == [
        type(value) for _, value in sorted(asked.custom.items())
    ]
    assert got.trace_context == asked.trace_context
    assert got.priority == (asked.priority or 0)
    assert got.max_attempts == (asked.max_attempts or 3)


@FEW
@given(st.lists(enqueue_requests(), min_size=1, max_size=4))
def test_a_server_takes_every_request_and_delivers_it_as_it_was(
    requests: list[EnqueueRequest],
) -> None:
    async def main() -> None:
        async with open_broker() as broker:
            async with broker.open_client() as client:
                answers = await client.enqueue_batch(requests)
            assert all(isinstance(answer, EnqueueAck) for answer in answers)
            stored = {
                answer.job_id: request
                for request, answer in zip(requests, answers, strict=True)
                if isinstance(answer, EnqueueAck) and not answer.deduplicated
            }
            await trio.sleep(29 * 86400)
            queues = list({request.queue for request in requests})
            options = ReserveOptions(queues, 30, wait_timeout=0, max_jobs=10)
            async with broker.open_client() as client:
                for job in await client.reserve(options):
                    check(stored.pop(job.id), job)
            assert not stored

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@FEW
@given(jobs())
def test_the_numbers_and_times_of_a_job_agree(job: Job) -> None:
    assert 1 <= job.attempt <= job.max_attempts <= 100
    assert job.lease_duration is not None
    delivered_at = job.lease_expires_at - timedelta(seconds=job.lease_duration)
    assert delivered_at >= (job.scheduled_at or job.enqueued_at) >= job.enqueued_at
    for moment in (job.enqueued_at, job.lease_expires_at, job.scheduled_at or job.enqueued_at):
        assert moment.microsecond % 1000 == 0


@FEW
@given(payloads(max_size=16), payloads(encodings=["protobuf"], max_size=3))
def test_payloads_keep_to_their_size_and_their_labels(
    payload: Payload | None, other: Payload | None
) -> None:
    assert payload is not None
    assert other is not None
    assert len(payload.data) <= 16
    assert 1 <= len(other.data) <= 3
    assert other.encoding == "protobuf"
    if payload.encoding == "json":
        payload.decode_json()
    elif payload.encoding == "text":
        payload.data.decode()


@FEW
@given(payloads(values=st.fixed_dictionaries({"order": st.integers(1, 9)})))
def test_the_documents_of_payloads_can_be_chosen(payload: Payload | None) -> None:
    assert payload is not None
    assert payload.encoding == "json"
    document = payload.decode_json()
    assert isinstance(document, dict)
    assert 1 <= document["order"] <= 9


@FEW
@given(payloads(encodings=["json"], max_size=1))
def test_even_one_byte_is_room_for_a_document(payload: Payload | None) -> None:
    assert payload is not None
    assert len(payload.data) == 1


@FEW
@given(custom_maps(min_size=1, max_size=2, keys=st.sampled_from("abc"), values=st.integers(0, 3)))
def test_custom_maps_keep_to_what_is_asked_for(custom: dict[str, object]) -> None:
    assert 1 <= len(custom) <= 2
    assert set(custom) <= set("abc")
    assert set(custom.values()) <= {0, 1, 2, 3}


@FEW
@given(fault_plans(kinds=[LoseReply, Delay, BlackHole], rpcs=["Ack"], seconds=0.5, longest=0.25))
def test_plans_keep_to_what_is_asked_for(plan: FaultPlan) -> None:
    for fault in plan.faults:
        match fault:
            case BlackHole(at, seconds):
                assert at <= 0.5
                assert 0 < seconds <= 0.25
            case Delay(rpc, nth, request, reply):
                assert rpc == "Ack"
                assert 1 <= nth <= 10
                assert 0 < request + reply <= 0.25
            case LoseReply(rpc, nth):
                assert rpc == "Ack"
                assert 1 <= nth <= 10
            case _:
                pytest.fail(f"not asked for: {fault}")


# ---- Pinned fields ----


@FEW
@given(
    enqueue_requests(
        queue="emails", job_type=st.sampled_from(["a", "b"]), payload=None, scheduled_at=None
    )
)
def test_fields_of_requests_are_values_or_strategies(request: EnqueueRequest) -> None:
    assert (request.queue, request.payload, request.scheduled_at) == ("emails", None, None)
    assert request.job_type in ("a", "b")


@FEW
@given(jobs(attempt=5, priority=st.just(9), lease_duration=None, lease_deadline=7.5))
def test_fields_of_jobs_are_values_or_strategies(job: Job) -> None:
    assert (job.attempt, job.priority, job.lease_duration) == (5, 9, None)
    assert job.lease_deadline == 7.5
    assert job.max_attempts >= 5


@FEW
@given(jobs(max_attempts=2))
def test_attempts_of_a_job_end_at_a_given_limit(job: Job) -> None:
    assert job.max_attempts == 2
    assert job.attempt in (1, 2)


# ---- What is refused ----


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: payloads(max_size=0), "max_size must be between 1 and 1048576, not 0"),
        (lambda: payloads(max_size=2**21), "max_size must be between"),
        (lambda: payloads(max_size=1.5), "max_size must be an int"),
        (lambda: payloads(encodings=[]), "encodings must be labels, at least one"),
        (lambda: payloads(encodings="json"), "encodings must be labels"),
        (lambda: custom_maps(max_size=65), "max_size must be between 0 and 64"),
        (lambda: custom_maps(min_size=3, max_size=2), "min_size must be between 0 and 2"),
        (lambda: fault_plans(calls=0), "calls must be at least 1"),
        (lambda: fault_plans(seconds=0), r"seconds must be at least 0\.001"),
        (lambda: fault_plans(kinds=[]), "must not be empty"),
        (lambda: fault_plans(kinds=[int]), "kinds must be kinds of faults"),
    ],
)
def test_bounds_that_make_no_sense_are_refused_at_once(
    make: Callable[[], object], words: str
) -> None:
    with pytest.raises(InvalidArgument, match=words):
        make()


@pytest.mark.parametrize("make", [enqueue_requests, jobs])
def test_an_unknown_field_is_refused_with_the_known_ones(make: Callable[..., object]) -> None:
    with pytest.raises(TypeError, match=r"has no field 'priorty'; it has .*priority"):
        make(priorty=3)


# ---- The smallest ----

REQUEST = EnqueueRequest("0", "0")
# Hypothesis is quicker without the parts that do not matter.
PLAIN: dict[str, Any] = {"payload": None, "custom": {}, "trace_context": None, "queue": "0"}


@pytest.mark.parametrize(
    ("strategy", "condition", "expected"),
    [
        (payloads(allow_none=True), anything, None),
        (payloads(encodings=["json"]), anything, Payload.json(None)),
        (payloads(encodings=["bytes"]), anything, Payload(b"\0", "bytes")),
        (
            payloads(encodings=["json"]),
            lambda payload: isinstance(payload.decode_json(), list) and len(payload.data) > 2,
            Payload.json([None]),
        ),
        (custom_maps(), anything, {}),
        (custom_maps(), len, {"0": False}),
        (custom_maps(), lambda custom: 1.0 in custom.values(), {"0": True}),
        (custom_maps(), lambda custom: "" in custom.values(), {"0": ""}),
        (enqueue_requests(), anything, REQUEST),
        (
            enqueue_requests(**PLAIN),
            lambda request: request.priority is not None,
            EnqueueRequest("0", "0", priority=0),
        ),
        (
            enqueue_requests(**PLAIN),
            lambda request: request.scheduled_at is not None,
            EnqueueRequest("0", "0", scheduled_at=MIDNIGHT),
        ),
    ],
)
def test_the_smallest_is_small(
    strategy: st.SearchStrategy[Any], condition: Callable[[Any], Any], expected: object
) -> None:
    assert smallest(strategy, condition) == expected


def test_the_smallest_payload_is_a_text() -> None:
    assert find(payloads(), anything, settings=SMALLEST) == Payload(b"0", "text")


def test_the_smallest_trace_context_is_all_but_zero() -> None:
    context = smallest(trace_contexts(), anything)
    assert context.traceparent == f"00-{1:032x}-{1:016x}-00"
    assert context.tracestate is None


def test_the_smallest_job_is_a_first_attempt_of_the_usual_kind() -> None:
    job = smallest(jobs(), anything)
    assert (job.queue, job.job_type, job.payload, job.custom) == ("0", "0", None, {})
    assert (job.priority, job.attempt, job.max_attempts) == (0, 1, 3)
    assert (job.scheduled_at, job.lease_duration) == (None, 30.0)
    assert job.lease_expires_at - job.enqueued_at == timedelta(seconds=30)


def test_the_smallest_repeated_job_is_a_second_attempt() -> None:
    job = smallest(jobs(**PLAIN), lambda job: job.attempt > 1)
    assert (job.attempt, job.max_attempts) == (2, 3)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Fail, Fail("Ack", 1, Status.UNAVAILABLE)),
        (LoseReply, LoseReply("Ack")),
        (Delay, Delay("Ack", reply=1.0)),
        (LoseLease, LoseLease(0.0)),
        (DropConnection, DropConnection(0.0)),
        (BlackHole, BlackHole(0.0, 1.0)),
    ],
)
def test_the_smallest_plan_with_a_fault_is_that_fault_alone(kind: type, expected: object) -> None:
    assert smallest(fault_plans(), has(kind)) == FaultPlan((expected,))  # type: ignore[arg-type]


def test_the_smallest_plan_is_none_and_faults_of_the_server_come_when_asked_for() -> None:
    assert smallest(fault_plans(), anything) == FaultPlan()
    plans = fault_plans(kinds=[RestartServer, JumpServerClock])
    assert smallest(plans, has(RestartServer)) == FaultPlan((RestartServer(0.0),))
    assert smallest(plans, has(JumpServerClock)) == FaultPlan((JumpServerClock(0.0, 0.5),))


def test_the_smallest_long_black_hole_lasts_whole_seconds() -> None:
    plan = find(
        fault_plans(),
        lambda plan: any(isinstance(x, BlackHole) and x.seconds > 5 for x in plan.faults),
        settings=settings(UNEXPLAINED, max_examples=1000),
    )
    assert plan == FaultPlan((BlackHole(0.0, 6.0),))
