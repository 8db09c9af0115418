"""The status table: each status is an error of ours, and none is lost."""

from __future__ import annotations

import pytest
from grpclib.const import Status

from sepp_trio import errors
from sepp_trio.client._status import client_error, lease_error, reserve_error
from sepp_trio.transport import CallError

TABLE = {
    Status.UNAVAILABLE: errors.TransportError,
    Status.DEADLINE_EXCEEDED: errors.TransportError,
    Status.ABORTED: errors.TransportError,
    Status.CANCELLED: errors.TransportError,
    Status.UNAUTHENTICATED: errors.UnauthenticatedError,
    Status.PERMISSION_DENIED: errors.UnauthenticatedError,
    Status.RESOURCE_EXHAUSTED: errors.OverloadedError,
    Status.INVALID_ARGUMENT: errors.InvalidRequestError,
    Status.INTERNAL: errors.ServerInternalError,
    Status.DATA_LOSS: errors.ServerInternalError,
    Status.UNKNOWN: errors.ServerInternalError,
    Status.NOT_FOUND: errors.UnexpectedStatusError,
    Status.FAILED_PRECONDITION: errors.UnexpectedStatusError,
    Status.ALREADY_EXISTS: errors.UnexpectedStatusError,
    Status.OUT_OF_RANGE: errors.UnexpectedStatusError,
    Status.UNIMPLEMENTED: errors.UnexpectedStatusError,
}


def failure(status: Status, message: str = "the server's words") -> CallError:
    return CallError(status, message, origin="server")


def test_the_table_is_complete() -> None:
    assert set(TABLE) == set(Status) - {Status.OK}


@pytest.mark.parametrize("status", TABLE)
def test_a_status_means_the_same_in_every_call(status: Status) -> None:
    error = client_error(failure(status))
    assert type(error) is TABLE[status]
    assert "the server's words" in str(error)
    if status is not Status.NOT_FOUND and status is not Status.FAILED_PRECONDITION:
        assert type(lease_error(failure(status))) is TABLE[status]
    if status is not Status.FAILED_PRECONDITION:
        assert type(reserve_error(failure(status))) is TABLE[status]


def test_an_error_has_words_even_if_the_server_has_none() -> None:
    for read in (client_error, lease_error, reserve_error):
        for status in TABLE:
            assert str(read(failure(status, "")))


def test_an_unexpected_status_carries_its_code() -> None:
    error = client_error(failure(Status.OUT_OF_RANGE))
    assert isinstance(error, errors.UnexpectedStatusError)
    assert (error.code, error.status_message) == ("OUT_OF_RANGE", "the server's words")


def test_two_statuses_are_about_the_lease() -> None:
    assert type(lease_error(failure(Status.NOT_FOUND))) is errors.JobNotFoundError
    assert type(lease_error(failure(Status.FAILED_PRECONDITION))) is errors.AttemptMismatchError


def test_one_status_is_about_the_queues_of_a_reserve() -> None:
    error = reserve_error(failure(Status.FAILED_PRECONDITION, "undeclared: a, b"))
    assert type(error) is errors.UnknownQueuesError
    assert str(error) == "undeclared: a, b"


@pytest.mark.parametrize("status", [Status.NOT_FOUND, Status.FAILED_PRECONDITION])
def test_only_the_servers_word_loses_a_lease(status: Status) -> None:
    error = CallError(status, "not from the server", origin="local")
    assert type(lease_error(error)) is errors.UnexpectedStatusError
    assert type(reserve_error(error)) is errors.UnexpectedStatusError


@pytest.mark.parametrize("status", [Status.INTERNAL, Status.UNKNOWN])
def test_an_answer_that_makes_no_sense_is_malformed(status: Status) -> None:
    error = client_error(CallError(status, "the answer does not decode", origin="local"))
    assert type(error) is errors.MalformedResponseError
