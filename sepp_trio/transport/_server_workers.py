"""The tasks of a connection in which its calls run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from ._server_call import ServerCall

_MAX_IDLE = 256


class _Seat:
    """One task that waits, and the call that it is to run next; None: it is to end."""

    __slots__ = ("call", "task")

    def __init__(self) -> None:
        self.call: ServerCall | None = None
        self.task = trio.lowlevel.current_task()


class Workers:
    """Runs each call in a task and a cancel scope that it has to itself.

    To make those costs more than all the rest of a small call: a task whose
    call has ended waits for another, with the scope that it has.
    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._idle: list[_Seat] = []
        self._stopped = False
        self._used = False

    def start(self, call: ServerCall) -> None:
        """Run a call, soon."""
        self._used = True
        if self._idle:
            seat = self._idle.pop()
            seat.call = call
            trio.lowlevel.reschedule(seat.task)
        else:
            self._nursery.start_soon(self._work, call, name="calls of a connection")

    def stop(self) -> None:
        """Let the tasks end: those that wait at once, the others after their calls."""
        self._stopped = True
        self._dismiss()

    def rest(self) -> None:
        """Give back what waits for calls, if there were none since this was called last."""
        if not self._used:
            self._dismiss()
        self._used = False

    def _dismiss(self) -> None:
        while self._idle:
            trio.lowlevel.reschedule(self._idle.pop().task)

    async def _work(self, first: ServerCall) -> None:
        seat = _Seat()
        call: ServerCall | None = first
        while call is not None:
            with trio.CancelScope() as scope:
                while call is not None:
                    await call.run(scope)
                    if scope.cancel_called:
                        break
                    call = await self._next(seat)
            if call is not None:
                # Its scope was cancelled, and is of no use to another call.
                if scope.cancelled_caught:
                    call.cancelled()
                call = await self._next(seat)

    async def _next(self, seat: _Seat) -> ServerCall | None:
        if self._stopped or len(self._idle) >= _MAX_IDLE:
            return None

        def abort(_: object) -> trio.lowlevel.Abort:
            self._idle.remove(seat)
            return trio.lowlevel.Abort.SUCCEEDED

        seat.call = None
        self._idle.append(seat)
        await trio.lowlevel.wait_task_rescheduled(abort)
        return seat.call
