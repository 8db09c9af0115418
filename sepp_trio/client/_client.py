"""``SeppClient``: the calls of the service, and what they give and raise."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from functools import partial

import trio

from ..errors import BatchValidationError, JobRejectedError
from ..lease import Lease
from ..lease import hold as hold_lease
from ..transport import CallError, ChannelStatistics
from ..types import (
    DeadLetterRecord,
    Duration,
    EnqueueAck,
    EnqueueRequest,
    Job,
    JobRejection,
    LeasedJob,
    RawDeadLetter,
    ReserveOptions,
    RetryDirective,
    ServerInfo,
)
from ..types._checks import integer, queue_name, seconds
from ..wire import convert, records
from ._batches import checked_requests
from ._caller import Caller
from ._enqueue_many import EnqueueMany
from ._leased import lease_of
from ._reason import clean_reason
from ._reserve import reserve
from ._retry import repeat_batch, repeat_idempotent, repeat_unambiguous
from ._status import reserve_error
from ._taking import take

_DRAIN_SETTLE = 1.0
"""Seconds that a cancelled drain waits for its answer, whose records are deleted already."""


class SeppClient(Caller):
    """A connection to a sepp server; made by :func:`open_client`.

    Any number of tasks may use it at once: calls share one connection, and a lost one is
    dialled anew when there is work for it.

    Unless a method says otherwise, each of its calls

    * is a checkpoint. A cancel abandons the call: the server may or may not have done it;
    * has ``rpc_timeout`` seconds for each attempt;
    * is repeated by the ``retry_policy`` after a failure that passes by itself;
    * raises :class:`ClientError` if there is no good answer, with ``TransportError``
      (connection lost, deadline passed), ``UnauthenticatedError``, ``OverloadedError``,
      ``InvalidRequestError``, ``ServerInternalError``, ``UnexpectedStatusError`` and
      ``MalformedResponseError`` below it; ``ClientClosedError`` outside the
      ``open_client`` block;
    * refuses wrong arguments before anything is sent: ``TypeError`` or ``ValueError``,
      naming the field and the limit.
    """

    def __repr__(self) -> str:
        return f"<SeppClient {self._address}{' (closed)' if self._closed else ''}>"

    # ---- producing ----

    async def enqueue(self, request: EnqueueRequest) -> EnqueueAck:
        """Store one job. When this returns, the server has it on disk.

        Repeated by the retry policy after any passing failure if the request has an
        ``idempotency_key``. Without one only where the server says that it did not store
        the job, as a second call might store it twice.

        Raises:
            JobRejectedError: the server refuses the job; ``rejection`` says why.
            ClientError: see :class:`SeppClient`.
        """
        if not isinstance(request, EnqueueRequest):
            raise TypeError(f"request must be an EnqueueRequest, not {type(request).__name__}")
        results = await self._call(
            self._methods.enqueue_batch,
            (request,),
            repeat_unambiguous if request.idempotency_key is None else repeat_idempotent,
        )
        [outcome] = convert.counted(results, 1)
        if isinstance(outcome, JobRejection):
            raise JobRejectedError(outcome)
        return outcome

    async def enqueue_batch(
        self, requests: Iterable[EnqueueRequest]
    ) -> list[EnqueueAck | JobRejection]:
        """Store each job that the server takes; the result of each, in order.

        One call and one write to the server's disk. A server takes 256 jobs and 16 MiB in
        one call unless it is configured otherwise; ``enqueue_many`` has no limit. Repeats
        as for :meth:`enqueue`, with a key on every job.

        Raises:
            EmptyBatchError: no job; nothing was sent.
            ClientError: see :class:`SeppClient`.
        """
        batch = checked_requests(requests)
        results = await self._call(self._methods.enqueue_batch, batch, partial(repeat_batch, batch))
        return convert.counted(results, len(batch))

    async def enqueue_atomic(self, requests: Iterable[EnqueueRequest]) -> list[EnqueueAck]:
        """Store all jobs or none; their acks, in order. Repeats as for :meth:`enqueue_batch`.

        Raises:
            BatchValidationError: the server refuses at least one; ``errors`` lists each.
            EmptyBatchError: no job; nothing was sent.
            ClientError: see :class:`SeppClient`.
        """
        batch = checked_requests(requests)
        answer = await self._call(self._methods.enqueue_atomic, batch, partial(repeat_batch, batch))
        if isinstance(answer, BatchValidationError):
            raise answer
        return convert.counted(answer, len(batch))

    def enqueue_many(
        self,
        requests: AsyncIterable[EnqueueRequest] | Iterable[EnqueueRequest],
        *,
        batch_size: int = 256,
        in_flight: int = 4,
    ) -> AsyncIterator[EnqueueAck | JobRejection]:
        """Store any number of jobs; iterate over the result of each, in order.

        ``async for result in client.enqueue_many(rows): ...`` pulls from ``requests`` as
        the results are taken, so memory is bounded by ``in_flight`` batches of at most
        ``batch_size`` jobs and about 4 MiB. Batches are stored side by side: jobs of one
        import have no certain order among themselves.

        One task at a time may iterate; to share the results, hand them on.

        Nothing has to be closed: the iteration may be left at any point. Every step is a
        cancel point (and waits on the server, or on ``requests``); a step that was
        cancelled can be repeated without losing anything, as long as ``requests`` itself
        survives a cancel (a generator does not). Up to ``in_flight`` batches beyond the
        last result may have been stored. With an ``idempotency_key`` on every job an
        import can be run again from anywhere.

        Repeats as for :meth:`enqueue_batch`. The first failure ends the iteration, after
        the results before it; so does an exception of ``requests``, which comes out as it is.

        Args:
            batch_size: Jobs in one call; a server's limit is 256 unless configured otherwise.
            in_flight: Calls under way at once.

        Raises:
            TypeError: from the iteration, if a request is none; names its index.
            trio.BusyResourceError: from the iteration, if two tasks iterate at once.
            ClientError: from the iteration; see :class:`SeppClient`.
        """
        integer(batch_size, "batch_size", 1)
        integer(in_flight, "in_flight", 1)
        return EnqueueMany(self, requests, batch_size, in_flight)

    # ---- consuming ----

    async def reserve(self, options: ReserveOptions) -> list[Job]:
        """Lease jobs; waits up to ``wait_timeout`` for the first, empty if none came.

        Each job's lease has begun; its end is ``lease_deadline`` on Trio's clock. A job that
        cannot be read is dead-lettered and logged, and the others are returned.

        Under a deadline of the caller's the wait is made to end before it, so that the
        server answers in time. The call must be answered 10 s after the wait, whatever
        ``rpc_timeout`` is, and is never repeated.

        A cancel: the server leases jobs before it can know that nobody wants them, so a
        reserve that is cut off may leave jobs leased to nobody until their lease ends,
        which costs them an attempt (their last one: they are dead-lettered unseen). Hence a
        call that started less than 0.5 s ago is not cut off at once but given that time,
        and if it brings jobs they are returned in place of the cancel, which then strikes
        at the next checkpoint. After that a waiting call is cut off (and an answer that
        crosses within 0.05 s is returned likewise), at the risk that a job came in that very
        moment. To stop polling without a risk, let the wait run out.

        Raises:
            UnknownQueuesError: the server is strict and does not declare some queue.
            ClientError: see :class:`SeppClient`; ``OverloadedError`` if the answer is over
                ``max_receive_message_bytes``: its jobs stay leased until their leases end.
        """
        if not isinstance(options, ReserveOptions):
            raise TypeError(f"options must be ReserveOptions, not {type(options).__name__}")
        self._check_open()
        try:
            return await reserve(self, options)
        except CallError as error:
            raise self._failure(error, reserve_error) from error

    async def ack(self, job: LeasedJob) -> None:
        """The job is done: the server forgets it.

        ``job`` is a ``Job``, a ``JobCtx``, or anything with an ``id`` and an ``attempt``.
        Inside ``hold`` of the same job this is ``Lease.ack``: under the heartbeat, and
        repeated until the lease ends.

        Raises:
            JobNotFoundError: it is not in flight; after a repeat most likely because the
                first call arrived.
            AttemptMismatchError: its lease ended and it was delivered again.
            LeaseLostError: inside ``hold``, and the lease is lost.
            ClientError: see :class:`SeppClient`.
        """
        name = lease_of(job)
        if (lease := self._held(job)) is not None:
            await lease.ack()
            return
        await self._lease_call(
            self._methods.ack, records.AckRequest(name.id, name.attempt, name.worker_id)
        )

    async def nack(
        self,
        job: LeasedJob,
        directive: RetryDirective = RetryDirective.DEFAULT,
        reason: str = "",
    ) -> bool:
        """The job failed; ``directive`` says what becomes of it. Whether that was its end:
        dead-lettered, if the server keeps dead letters.

        ``reason`` is kept with a dead letter only. It is cut to 4,096 bytes of UTF-8, and
        lone surrogates in it are written as escapes. Inside ``hold`` this is ``Lease.nack``.

        Raises:
            LeaseError, ClientError: see :meth:`ack`.
        """
        name = lease_of(job)
        reason = clean_reason(reason)
        if (lease := self._held(job)) is not None:
            return await lease.nack(directive, reason)
        request = convert.nack_request_to_wire(
            name.id, name.attempt, directive, reason, name.worker_id
        )
        response = await self._lease_call(self._methods.nack, request)
        return response.dead_lettered

    async def extend(self, job: LeasedJob, lease_duration: Duration) -> datetime:
        """Lease the job for ``lease_duration`` seconds from now; the new end, by the
        server's clock. The server grants at most its own limit, and this can shorten a
        lease. Inside ``hold`` this is ``Lease.extend``, and the heartbeat knows of it.

        Raises:
            LeaseError, ClientError: see :meth:`ack`.
        """
        name = lease_of(job)
        asked = seconds(lease_duration, "lease_duration")
        if (lease := self._held(job)) is not None:
            return await lease.extend(asked)
        request = records.ExtendRequest(
            name.id, name.attempt, convert.seconds_to_wire(asked), name.worker_id
        )
        response = await self._lease_call(self._methods.extend, request)
        return convert.lease_expiry_from_wire(response)

    def hold(
        self, job: LeasedJob, *, auto_extend: bool = True, interval: Duration | None = None
    ) -> AbstractAsyncContextManager[Lease]:
        """Keep a job's lease while a block runs, and cancel the block when it is lost.

        ``async with client.hold(job) as lease: ...`` extends the lease in the background
        (``auto_extend``; every ``interval`` seconds, a third of the granted lease unless
        set). When the server says that the job is somebody else's, or the lease's time is
        up without a good extend, the block is cancelled and ``LeaseLostError`` comes out
        of it. Report the job inside: ``await lease.ack()`` or ``lease.nack(...)``; nothing
        is sent for a block that does not, and the job comes back when its lease ends.

        Entering is a checkpoint only for a job that does not know its lease's end (one that
        did not come from ``reserve``): it is extended first. Leaving is one only while an
        ack or nack is on its way, which is waited for until the lease ends.

        A job that is held already, by its worker or by another ``hold``, gives the same lease.
        Its first holder keeps it: when that one lets go without an ack or nack, the other
        blocks are cancelled as if it were lost.

        Raises:
            LeaseLostError: the lease was lost, unless the block raised something itself.
            ValueError: ``interval`` is not shorter than the lease.
        """
        self._check_open()
        lease_of(job)
        return hold_lease(self._keeper, job, auto_extend=auto_extend, interval=interval)

    # ---- looking after the server ----

    async def get_server_info(self) -> ServerInfo:
        """The server's version, clock and limits.

        Raises:
            MalformedServerInfoError: its answer cannot be read.
            ClientError: see :class:`SeppClient`.
        """
        sent = trio.current_time()
        response = await self._call(
            self._methods.get_server_info, records.GetServerInfoRequest(), repeat_idempotent
        )
        info = convert.server_info_from_wire(response)
        self._keeper.take_server_info(response, sent, trio.current_time())
        return info

    async def drain_dead_letters(
        self, queue: str | None = None, max_records: int = 1
    ) -> list[DeadLetterRecord | RawDeadLetter]:
        """Take the oldest dead letters, of one queue or of all, off the server.

        The server deletes them with its answer: they exist nowhere else then. So the call is
        never repeated, a record that cannot be read comes as its bytes, and a cancel waits
        up to 1 s for the answer: records that come are returned in place of the cancel,
        which then strikes at the next checkpoint. What is lost with the connection, or is
        over ``max_receive_message_bytes``, is lost for good: ask for few at a time.

        A server that keeps no dead letters has none. It gives at most 256 at once unless
        it is configured otherwise.

        Raises:
            ClientError: see :class:`SeppClient`.
        """
        if queue is not None:
            queue_name(queue)
        integer(max_records, "max_records", 1)
        self._check_open()
        try:
            response = await take(
                self._channel,
                self._methods.drain_dead_letters,
                records.DrainDeadLettersRequest(queue, max_records),
                timeout=self._rpc_timeout,
                brings=lambda response: bool(response.records),
                settle=_DRAIN_SETTLE,
                parks=False,
            )
        except CallError as error:
            raise self._failure(error) from error
        return [convert.dead_letter_from_wire(raw) for raw in response.records]

    async def replay(self, record: DeadLetterRecord) -> EnqueueAck:
        """Enqueue a dead letter's job again: a new job with a new id, attempt 1, no
        schedule, and no idempotency key, so :meth:`enqueue` says when it is repeated.

        Raises:
            JobRejectedError, ClientError: see :meth:`enqueue`.
        """
        if not isinstance(record, DeadLetterRecord):
            raise TypeError(f"record must be a DeadLetterRecord, not {type(record).__name__}")
        return await self.enqueue(record.to_enqueue_request())

    def statistics(self) -> ChannelStatistics:
        """The connection's state, calls open and waiting, bytes, reconnects. Not a checkpoint."""
        return self._channel.statistics()
