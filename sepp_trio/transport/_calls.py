"""One call of a channel, from its start to its only result."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NoReturn

import trio
from grpclib.const import Status
from outcome import Value

from ._client_stream import ClientStream
from ._errors import CallError
from ._status import from_reset, message_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._dispatch import Dispatcher
    from ._method import Method, RequestBlocks

SERVER_SLACK = 0.1
"""Seconds before a deadline from which on the server's word for it is believed."""
_OVER = frozenset((Status.CANCELLED, Status.DEADLINE_EXCEEDED))


class Call(ClientStream):
    """A unary call.  It is finished exactly once, or withdrawn.

    ``deadline`` is when the server may give up (what ``grpc-timeout`` says);
    ``due`` when we do.  ``done`` is set before the result is handed over.
    """

    __slots__ = (
        "blocks",
        "deadline",
        "dispatcher",
        "done",
        "due",
        "long_poll",
        "method",
        "refusals",
        "started",
    )

    def __init__(
        self,
        dispatcher: Dispatcher,
        method: Method[Any, Any],
        message: bytes,
        blocks: RequestBlocks,
        urgent: bool,
        long_poll: bool,
    ) -> None:
        # All of it here: three constructors in a row would be a tenth of a call.
        self.message = message
        self.urgent = urgent
        self.id = 0
        self.connection = None
        self.dispatcher = dispatcher
        self.method = method
        self.blocks = blocks
        self.long_poll = long_poll
        self.done = False
        self.refusals = 0
        self.deadline = self.due = math.inf
        self.started = 0.0

    def settle(self, reply: Any, error: CallError | None) -> None:
        """The result, a reply or an error, is known: let go of what the call held, hand it over."""
        raise NotImplementedError

    def withdraw(self) -> None:
        """Undo the call: nothing is finished.  Does nothing if it is done."""
        if not self.done:
            self.done = True
            self.dispatcher.drop(self)
            self.message = self.body = b""

    # From the connection --------------------------------------------------

    def header_block(self, now: float) -> bytes | None:
        if self.deadline == math.inf:
            return self.blocks.untimed
        left = self.deadline - now
        if left <= 0:
            return None  # the timer or the caller's scope is about to end the call
        return self.blocks[math.ceil(left * 1000)]

    def answered(self) -> None:
        if self.done:
            return  # withdrawn, and not reset yet
        try:
            message = message_of(self)
        except CallError as error:
            self.settle(None, self._judge(error))
            return
        self.body = b""  # not held any longer: it may be large
        self.replied(message)

    def replied(self, message: bytes) -> None:
        if self.done:
            return  # withdrawn, and not reset yet
        try:
            reply = self.method.decode(message)
        except Exception as cause:
            text = f"the answer does not decode: {cause}"
            undecodable = CallError(Status.INTERNAL, text, origin="local")
            undecodable.__cause__ = cause
            self.settle(None, undecodable)
            return
        self.settle(reply, None)

    def broken(self, code: int, reason: str, *, unprocessed: bool) -> None:
        connection, self.connection = self.connection, None
        if self.done:
            return
        # A connection that goes on has refused this one call.
        refused = connection is not None and connection.accepting
        if not unprocessed or not self.dispatcher.repeat(self, refused=refused):
            self.settle(None, self._judge(from_reset(code, reason, unprocessed=unprocessed)))

    def oversized(self, size: int) -> None:
        if self.done:
            return
        text = f"the answer's message of {size} bytes is larger than the receive limit"
        self.settle(None, CallError(Status.RESOURCE_EXHAUSTED, text, origin="local"))

    # From the timer -------------------------------------------------------

    def expired(self) -> None:
        """The call's own deadline has come."""
        self.dispatcher.drop(self)
        self.settle(None, deadline_error())

    def _judge(self, error: CallError) -> CallError:
        # The server counts the same time; which word comes first is chance.
        if error.status in _OVER and self.due <= self.deadline and self._is_over(self.due):
            return deadline_error()
        return error

    def _is_over(self, deadline: float) -> bool:
        return trio.current_time() >= deadline - SERVER_SLACK


class TaskCall(Call):
    """A call whose task waits for it, with :meth:`abort` for its cancellation.

    The task is woken with the reply and the error.  They are not kept here:
    the timer may know this object long after.
    """

    __slots__ = ("task",)

    task: trio.lowlevel.Task

    def settle(self, reply: Any, error: CallError | None) -> None:
        self.done = True
        self.message = self.body = b""
        trio.lowlevel.reschedule(self.task, Value((reply, error)))

    def abort(self, _: object) -> trio.lowlevel.Abort:
        """The task was cancelled while it waited."""
        self.withdraw()
        return trio.lowlevel.Abort.SUCCEEDED

    async def fail(self, error: CallError) -> NoReturn:
        """Raise the error, unless the caller is to be cancelled instead."""
        outer_over = self.deadline < self.due and self._is_over(self.deadline)
        if outer_over and error.status in _OVER:
            # The caller's scope is over, and the server said so first: the
            # caller is cancelled, as if we had been quicker.
            await trio.sleep_until(self.deadline)
        try:
            raise error
        finally:
            del error  # no cycle through the traceback


class PendingCall(Call):
    """A call whose result goes to a callback."""

    __slots__ = ("on_done",)

    on_done: Callable[[Any, CallError | None], None]
    """Where the result is to go."""

    def settle(self, reply: Any, error: CallError | None) -> None:
        self.done = True
        self.message = self.body = b""
        on_done = self.on_done
        del self.on_done  # the timer may know this object long after
        on_done(reply, error)

    def reset(self) -> None:
        """Tell the peer that the answer is not wanted, but take one that crosses the reset.

        :meth:`cancel` says when to wait for it no longer.
        """
        if not self.done:
            self.dispatcher.reset(self)

    def recall(self) -> bool:
        """Undo the call if nothing of it has left, else leave it alone; whether it is undone."""
        if self.done or self.connection is not None:
            return False
        self.cancel()
        return True

    def cancel(self) -> None:
        """Undo the call: its callback is not called any more.  Idempotent."""
        if not self.done:
            self.withdraw()
            del self.on_done


def deadline_error() -> CallError:
    """The error of a call whose own deadline has passed."""
    return CallError(Status.DEADLINE_EXCEEDED, "the call's deadline has passed", origin="local")
