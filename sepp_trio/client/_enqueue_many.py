"""Enqueuing without end: batches in flight, results in order, memory bounded.

The iterator has no task and no nursery: batches are started by a plain call and finish in
the channel. So it can be left early, dropped or cancelled at any point with nothing to
close; what was sent by then may be stored, as with any enqueue that nobody waits for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING

import trio

from ..errors import ClientError
from ..transport import CallError, ChannelClosed
from ..types import EnqueueAck, EnqueueRequest, JobRejection
from ..wire import convert
from ._batches import checked_request
from ._retry import repeat_batch

if TYPE_CHECKING:
    from ._client import SeppClient

MAX_BATCH_BYTES = 4 * 2**20
"""A batch of several jobs is about this large at most; a server takes 16 MiB."""


class EnqueueMany(AsyncIterator[EnqueueAck | JobRejection]):
    """The results of ``enqueue_many``."""

    def __init__(
        self,
        client: SeppClient,
        requests: AsyncIterable[EnqueueRequest] | Iterable[EnqueueRequest],
        batch_size: int,
        in_flight: int,
    ) -> None:
        self._client = client
        self._source = _iterator(requests)
        self._batch_size = batch_size
        self._in_flight = in_flight
        self._taken = 0
        self._gathered: list[EnqueueRequest] = []
        self._gathered_bytes = 0
        self._left_over: EnqueueRequest | None = None
        self._exhausted = False
        self._source_error: Exception | None = None
        self._batches: deque[_Batch] = deque()
        self._busy = False
        self._results: deque[EnqueueAck | JobRejection] = deque()

    async def __anext__(self) -> EnqueueAck | JobRejection:
        """The next job's result. A cancel point; a schedule point once per batch.

        Raises:
            trio.BusyResourceError: another task is in here: the order would be nobody's.
        """
        if self._busy:
            raise trio.BusyResourceError("another task is iterating over these results")
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._client._closed:
            self._client._check_open()
        if not self._results:
            self._busy = True
            try:
                await self._next_results()
            finally:
                self._busy = False
        return self._results.popleft()

    async def _next_results(self) -> None:
        while not self._results:
            if self._batches and (self._batches[0].done.is_set() or not self._may_gather()):
                await self._settle_first()
            elif self._may_gather():
                await self._gather()
            elif self._source_error is not None:
                error, self._source_error = self._source_error, None
                raise error
            else:
                await trio.lowlevel.checkpoint()
                raise StopAsyncIteration

    def _may_gather(self) -> bool:
        return not self._exhausted and len(self._batches) < self._in_flight

    async def _gather(self) -> None:
        """Take a batch of requests and start it. What was taken outlives a cancel."""
        # One request left over from the batch before is fewer than a batch.
        more = True
        try:
            if isinstance(source := self._source, AsyncIterator):
                while more:
                    try:
                        request = await source.__anext__()
                    except StopAsyncIteration:
                        self._exhausted = True
                        break
                    more = self._take(request)
            else:
                while more:
                    try:
                        request = next(source)
                    except StopIteration:
                        self._exhausted = True
                        break
                    more = self._take(request)
        except Exception as error:
            # Everything before it is enqueued and reported first.
            self._exhausted = True
            self._source_error = error
        if self._gathered:
            batch = _Batch(self._client, self._gathered)
            left_over, self._left_over = self._left_over, None
            self._gathered = [] if left_over is None else [left_over]
            self._gathered_bytes = 0 if left_over is None else _size(left_over)
            batch.start()
            self._batches.append(batch)

    def _take(self, request: EnqueueRequest) -> bool:
        """The next request of the source: into the batch, or into the one behind it if this
        would be too large. Whether more is wanted."""
        if request.__class__ is not EnqueueRequest:
            checked_request(request, self._taken)
        self._taken += 1
        size = _size(request)
        if self._gathered and self._gathered_bytes + size > MAX_BATCH_BYTES:
            self._left_over = request
            return False
        self._gathered.append(request)
        self._gathered_bytes += size
        return len(self._gathered) < self._batch_size

    async def _settle_first(self) -> None:
        """Wait for the oldest batch, repeating it as the client's policy allows."""
        batch = self._batches[0]
        await batch.done.wait()
        if batch.error is not None and batch.may_repeat():
            await trio.sleep(self._client._retry_policy.backoff(batch.failed))
            batch.start()
            return
        try:
            self._results.extend(batch.outcomes())
            self._batches.popleft()
        except ClientError:
            # The batches behind it are left to finish; nobody reports them any more.
            self._exhausted = True
            self._source_error = None
            self._batches.clear()
            raise


class _Batch:
    """One EnqueueBatch in flight."""

    __slots__ = ("_client", "_requests", "done", "error", "failed", "response")

    def __init__(self, client: SeppClient, requests: list[EnqueueRequest]) -> None:
        self._client = client
        self._requests = requests
        self.done = trio.Event()
        self.failed = 0
        self.response: list[EnqueueAck | JobRejection] | None = None
        self.error: CallError | None = None

    def start(self) -> None:
        self.done = trio.Event()
        self.error = None
        client = self._client
        try:
            client._channel.start_unary(
                client._methods.enqueue_batch,
                self._requests,
                self._finish,
                timeout=client._rpc_timeout,
            )
        except ChannelClosed as error:  # while the iteration waited for something
            self._finish(None, error)

    def _finish(
        self, response: list[EnqueueAck | JobRejection] | None, error: CallError | None
    ) -> None:
        self.response, self.error = response, error
        if error is not None:
            self.failed += 1
        self.done.set()

    def may_repeat(self) -> bool:
        assert self.error is not None
        if self.failed >= self._client._retry_policy.max_attempts:
            return False
        return repeat_batch(self._requests, self.error)

    def outcomes(self) -> list[EnqueueAck | JobRejection]:
        if self.error is not None:
            raise self._client._failure(self.error) from self.error
        assert self.response is not None
        return convert.counted(self.response, len(self._requests))


def _iterator(
    requests: AsyncIterable[EnqueueRequest] | Iterable[EnqueueRequest],
) -> AsyncIterator[EnqueueRequest] | Iterator[EnqueueRequest]:
    if isinstance(requests, AsyncIterable):
        return requests.__aiter__()
    if isinstance(requests, Iterable):
        return iter(requests)
    kind = type(requests).__name__
    raise TypeError(f"requests must be an iterable or async iterable, not {kind}")


def _size(request: EnqueueRequest) -> int:
    """Bytes on the wire, roughly: what is large in a large job."""
    size = 64 + len(request.queue) + len(request.job_type)
    if request.payload is not None:
        size += len(request.payload.data)
    for key, value in request.custom.items() if request.custom else ():
        size += 16 + len(key) + (len(value) if isinstance(value, str) else 0)
    return size
