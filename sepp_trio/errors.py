"""Every error of the package; each says whose fault it is.

Wrong arguments are ``ValueError`` or ``TypeError`` and name the field and the limit.
"""

from __future__ import annotations

from collections.abc import Sequence

from .types import Duration, JobRejection, JobValidationError, RetryDirective


class SeppError(Exception):
    """Base of all errors that this package raises, ``HandlerError`` apart."""


# --- the call could not be made, or its answer is no answer ---------------------------


class ClientError(SeppError):
    """A call failed for a reason that has nothing to do with the job it was about."""


class ConnectError(ClientError):
    """No sepp server could be reached at ``address``; ``reason`` says what was found."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return f"could not connect to {self.address}: {self.reason}"


class InvalidApiKeyError(ClientError):
    """The API key cannot be sent: found locally, before anything was sent."""


class ClientClosedError(ClientError):
    """The call was made after its ``open_client`` block had ended: a fault of the program."""


class TransportError(ClientError):
    """The connection failed, or the call's deadline passed: the server may or may not
    have done what was asked."""


class UnauthenticatedError(ClientError):
    """The server refuses the API key, or wants one."""


class OverloadedError(ClientError):
    """The server, or the receive limit of this client, has no room for the call."""


class InvalidRequestError(ClientError):
    """The server finds the request wrong; its message says where."""


class ServerInternalError(ClientError):
    """The server failed, or could not read the request."""


class UnexpectedStatusError(ClientError):
    """A gRPC status that this call does not have; ``code`` is its name."""

    def __init__(self, code: str, status_message: str) -> None:
        super().__init__(code, status_message)
        self.code = code
        self.status_message = status_message

    def __str__(self) -> str:
        return f"unexpected status {self.code}: {self.status_message or '(no message)'}"


class EmptyBatchError(ClientError):
    """A batch of no jobs; nothing was sent."""

    def __str__(self) -> str:
        return "a batch needs at least one job"


class MalformedResponseError(ClientError):
    """The server's answer lacks something, or cannot be read."""


class BatchResultCountMismatchError(MalformedResponseError):
    """The server answered a batch with another number of results."""

    def __init__(self, expected: int, got: int) -> None:
        super().__init__(expected, got)
        self.expected = expected
        self.got = got

    def __str__(self) -> str:
        return f"{self.expected} jobs were sent but {self.got} results came back"


class MalformedServerInfoError(MalformedResponseError):
    """The server's description of itself cannot be read."""


# --- the job is not, or no longer, yours ------------------------------------------------


class LeaseError(SeppError):
    """The job is no longer leased to the caller; whatever was done may be done again."""


class JobNotFoundError(LeaseError):
    """No such job is in flight: finished, given up, or its lease ended. After a repeated
    ack it most likely means that the first one arrived."""


class AttemptMismatchError(LeaseError):
    """The job's lease ended and it was delivered again: someone else has it."""


class LeaseLostError(LeaseError):
    """The lease ended, or the server said it is gone, inside ``hold``."""


# --- reserve, enqueue, handlers, worker -----------------------------------------------


class ReserveError(SeppError):
    """A reserve was refused."""


class UnknownQueuesError(ReserveError):
    """The server is strict and does not declare some of the queues; its message names them."""


class JobRejectedError(SeppError):
    """The server refuses the job; ``rejection`` says why."""

    def __init__(self, rejection: JobRejection) -> None:
        super().__init__(rejection)
        self.rejection = rejection

    def __str__(self) -> str:
        return f"job rejected: {self.rejection}"


class BatchValidationError(SeppError):
    """The server refuses an atomic batch; ``errors`` lists each bad job, nothing was stored."""

    def __init__(self, errors: Sequence[JobValidationError]) -> None:
        super().__init__(tuple(errors))
        self.errors = tuple(errors)

    def __str__(self) -> str:
        first = f", first: {self.errors[0]}" if self.errors else ""
        return f"{len(self.errors)} jobs of the batch were rejected{first}"


class DuplicateHandlerError(SeppError):
    """The worker already has a handler for this job type (``replace_handler`` replaces it)."""

    def __init__(self, job_type: str) -> None:
        super().__init__(job_type)
        self.job_type = job_type

    def __str__(self) -> str:
        return f"there already is a handler for job type {self.job_type!r}"


class HandlerError(Exception):
    """Raised by a handler to say what becomes of its job.

    No ``SeppError``, so that ``except SeppError`` around a client call in a handler
    does not swallow the handler's own verdict.
    """

    def __init__(self, reason: str, directive: RetryDirective) -> None:
        if not isinstance(reason, str):
            raise TypeError(f"reason must be a string, not {type(reason).__name__}")
        if not isinstance(directive, RetryDirective):
            kind = type(directive).__name__
            raise TypeError(f"directive must be a RetryDirective, not {kind}")
        super().__init__(reason, directive)
        self.reason = reason
        self.directive = directive

    def __str__(self) -> str:
        return self.reason

    @classmethod
    def retry(cls, reason: str) -> HandlerError:
        """Deliver the job again, by the queue's retry policy."""
        return cls(reason, RetryDirective.DEFAULT)

    @classmethod
    def retry_after(cls, reason: str, delay: Duration) -> HandlerError:
        """Deliver the job again after ``delay`` seconds."""
        return cls(reason, RetryDirective.after(delay))

    @classmethod
    def permanent(cls, reason: str) -> HandlerError:
        """Give the job up: it becomes a dead letter."""
        return cls(reason, RetryDirective.DEAD_LETTER)


# --- embedded server --------------------------------------------------------------------


class BrokerError(SeppError):
    """The embedded server cannot start or go on."""


class StoreError(BrokerError):
    """The database file cannot be used: not ours, of another version, locked, damaged, full."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"database {self.path}: {self.reason}"


class ConfigError(BrokerError, ValueError):
    """A value of the configuration is wrong; ``field`` is its key as in the file."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(field, reason)
        self.field = field
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"
