"""The part that all calls share: where they go, how often, and what their failures are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from ..errors import ClientClosedError, ClientError, LeaseError, ReserveError
from ..lease import Lease, LeaseKeeper
from ..retry import RetryPolicy
from ..transport import CallError, Channel, Method
from ..types import LeasedJob
from ._methods import methods
from ._retry import repeat_idempotent
from ._status import client_error, lease_error

Req = TypeVar("Req")
Resp = TypeVar("Resp")


class Caller:
    """A channel with a policy; the base of the client, made by ``open_client``."""

    def __init__(
        self,
        channel: Channel,
        keeper: LeaseKeeper,
        *,
        address: str,
        retry_policy: RetryPolicy,
        rpc_timeout: float,
    ) -> None:
        self._channel = channel
        self._keeper = keeper
        self._methods = methods()
        self._address = address
        self._retry_policy = retry_policy
        self._rpc_timeout = rpc_timeout
        self._closed = False

    async def _call(
        self,
        method: Method[Req, Resp],
        request: Req,
        may_repeat: Callable[[CallError], bool],
        read: Callable[[CallError], ClientError | LeaseError | ReserveError] = client_error,
        *,
        urgent: bool = False,
    ) -> Resp:
        """A call, repeated as the client's policy and ``may_repeat`` allow.

        A checkpoint; a cancel abandons the call (which may have been done) or ends the pause.
        ``read`` makes the error of the last attempt.
        """
        self._check_open()
        failed = 0
        while True:
            try:
                return await self._channel.unary(
                    method, request, timeout=self._rpc_timeout, urgent=urgent
                )
            except CallError as error:
                failed += 1
                if failed >= self._retry_policy.max_attempts or not may_repeat(error):
                    raise self._failure(error, read) from error
            await trio.sleep(self._retry_policy.backoff(failed))

    async def _lease_call(self, method: Method[Req, Resp], request: Req) -> Resp:
        """An ack, nack or extend: it goes before other calls, and may arrive twice."""
        return await self._call(method, request, repeat_idempotent, lease_error, urgent=True)

    def _held(self, job: LeasedJob) -> Lease | None:
        """The lease, if the job is held: its heartbeat must know what is done with the job."""
        self._check_open()
        held = self._keeper.find(job)
        return None if held is None else Lease(self._keeper, held)

    def _failure(
        self,
        error: CallError,
        read: Callable[[CallError], ClientError | LeaseError | ReserveError] = client_error,
    ) -> ClientError | LeaseError | ReserveError:
        """The error that a failed call raises."""
        return self._closed_error() if self._closed else read(error)

    def _check_open(self) -> None:
        if self._closed:
            raise self._closed_error()

    def _closed_error(self) -> ClientClosedError:
        return ClientClosedError(f"the open_client block of {self._address} has ended")
