"""Errors and rejections: their places in the tree, their attributes and their words."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime

import pytest

from sepp_trio import errors
from sepp_trio import types as domain
from sepp_trio.types import JobRejection, JobValidationError, RetryDirective

REJECTIONS: list[JobRejection] = [
    domain.UnknownQueue("q"),
    domain.PayloadTooLarge(1, 2),
    domain.EncodingNotAllowed("raw", ("json", "cbor")),
    domain.EncodingNotAllowed("raw", ()),
    domain.JobTypeNotAllowed("t", ("a",)),
    domain.CustomEntriesTooMany(64, 65),
    domain.CustomMapTooLarge(1, 2),
    domain.CustomKeyTooLong("k", 1, 2),
    domain.QueueNameTooLong(1, 2),
    domain.JobTypeNameTooLong(1, 2),
    domain.IdempotencyKeyTooLong(1, 2),
    domain.ScheduledTooFar(60.0, datetime(2030, 1, 1, tzinfo=UTC)),
    domain.ScheduledTooFar(60.0, None),
    domain.InvalidRequest("queue is empty"),
    domain.QueueFull("q", 10),
    domain.QueueClosing("q"),
    domain.UnknownRejection(),
]

ERRORS: list[errors.SeppError] = [
    errors.ConnectError("localhost:1", "refused"),
    errors.InvalidApiKeyError("api_key must not be empty"),
    errors.ClientClosedError("closed"),
    errors.TransportError("lost"),
    errors.UnauthenticatedError("invalid API key"),
    errors.OverloadedError("too much"),
    errors.InvalidRequestError("no"),
    errors.ServerInternalError("oops"),
    errors.UnexpectedStatusError("OUT_OF_RANGE", "too long"),
    errors.EmptyBatchError(),
    errors.MalformedResponseError("missing outcome"),
    errors.BatchResultCountMismatchError(2, 1),
    errors.MalformedServerInfoError("no server_version"),
    errors.JobNotFoundError("job not found"),
    errors.AttemptMismatchError("attempt mismatch"),
    errors.LeaseLostError("gone"),
    errors.UnknownQueuesError("a, b"),
    errors.JobRejectedError(domain.QueueFull("q", 10)),
    errors.BatchValidationError([JobValidationError(1, domain.UnknownQueue("q"))]),
    errors.DuplicateHandlerError("t"),
    errors.StoreError("jobs.db", "locked"),
    errors.ConfigError("limits.max_wait", "must be a number"),
]


@pytest.mark.parametrize("rejection", REJECTIONS, ids=lambda value: type(value).__name__)
def test_every_rejection_says_why_in_plain_words(rejection: JobRejection) -> None:
    words = str(rejection)
    assert words
    assert not words.startswith(type(rejection).__name__)
    assert str(errors.JobRejectedError(rejection)) == f"job rejected: {words}"


@pytest.mark.parametrize(
    ("horizon", "words"),
    [(2_592_000.0, "2592000 s"), (315_576_000_000.0, "315576000000 s"), (0.5, "0.5 s")],
)
def test_a_horizon_is_written_out(horizon: float, words: str) -> None:
    assert str(domain.ScheduledTooFar(horizon, None)).endswith(f"is more than {words} ahead")


def test_only_rejections_that_pass_by_themselves_are_transient() -> None:
    transient = {type(rejection) for rejection in REJECTIONS if rejection.transient}
    assert transient == {domain.QueueFull, domain.QueueClosing}


def test_every_rejection_is_tested_here() -> None:
    public = (kind for kind in vars(domain).values() if isinstance(kind, type))
    names = {kind.__name__ for kind in public if issubclass(kind, JobRejection)} - {"JobRejection"}
    assert {type(rejection).__name__ for rejection in REJECTIONS} == names


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_every_error_has_words_and_survives_pickling(error: errors.SeppError) -> None:
    assert str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_errors_carry_what_they_are_about() -> None:
    connect = errors.ConnectError("localhost:1", "refused")
    assert (connect.address, connect.reason) == ("localhost:1", "refused")
    assert "localhost:1" in str(connect)
    status = errors.UnexpectedStatusError("NOT_FOUND", "")
    assert (status.code, status.status_message) == ("NOT_FOUND", "")
    assert str(status) == "unexpected status NOT_FOUND: (no message)"
    mismatch = errors.BatchResultCountMismatchError(2, 1)
    assert (mismatch.expected, mismatch.got) == (2, 1)
    rejection = domain.QueueFull("q", 10)
    assert errors.JobRejectedError(rejection).rejection is rejection
    problems = [JobValidationError(0, rejection), JobValidationError(2, rejection)]
    batch = errors.BatchValidationError(problems)
    assert batch.errors == tuple(problems)
    assert (
        str(batch) == "2 jobs of the batch were rejected, first: job 0: queue 'q' is full (10 jobs)"
    )
    assert str(errors.BatchValidationError([])) == "0 jobs of the batch were rejected"


def test_a_failure_of_the_call_is_a_client_error() -> None:
    outside = (errors.LeaseError, errors.ReserveError, errors.JobRejectedError)
    assert not any(issubclass(kind, errors.ClientError) for kind in outside)
    assert issubclass(errors.MalformedServerInfoError, errors.ClientError)
    assert issubclass(errors.ClientError, errors.SeppError)
    assert {kind.__name__ for kind in errors.LeaseError.__subclasses__()} == {
        "JobNotFoundError",
        "AttemptMismatchError",
        "LeaseLostError",
    }
    assert errors.ReserveError.__subclasses__() == [errors.UnknownQueuesError]


def test_handler_errors_keep_reason_and_directive() -> None:
    assert errors.HandlerError.retry("later").directive is RetryDirective.DEFAULT
    assert errors.HandlerError.permanent("never").directive is RetryDirective.DEAD_LETTER
    error = errors.HandlerError.retry_after("busy", 2)
    assert error.directive == RetryDirective.after(2)
    assert (error.reason, str(error)) == ("busy", "busy")
    assert not issubclass(errors.HandlerError, errors.SeppError)
    with pytest.raises(ValueError, match="delay must be at least 0 s"):
        errors.HandlerError.retry_after("busy", -1)
    with pytest.raises(TypeError, match="reason must be a string, not int"):
        errors.HandlerError.retry(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="directive must be a RetryDirective, not str"):
        errors.HandlerError("x", "retry")  # type: ignore[arg-type]
