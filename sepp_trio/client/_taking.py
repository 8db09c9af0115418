"""Calls that take something away from the server: reserve and drain.

Once such a call has reached the server there is no undoing it: to reset it is to lose
what it took. So a cancel waits for the answer for a moment, and an answer that brings
something is handed over instead of the cancel. That keeps Trio's promise: ``Cancelled``
means that it did not happen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import trio

from ..transport import CallError, Channel, Method

Req = TypeVar("Req")
Resp = TypeVar("Resp")

_CROSSING = 0.05
"""Seconds for an answer that was under way when the call was reset."""


async def take(
    channel: Channel,
    method: Method[Req, Resp],
    request: Req,
    *,
    timeout: float,
    brings: Callable[[Resp], bool],
    settle: float,
    parks: bool,
) -> Resp:
    """One call, never repeated.

    A checkpoint. A cancel is held up until the answer is there, for at most ``settle``
    seconds: from the cancel, or with ``parks`` from the start, as a call that is still
    unanswered then is waiting and takes nothing. Then the call is reset, and an answer that
    crosses the reset has 0.05 s.

    Raises:
        CallError: the call failed.
    """
    await trio.lowlevel.checkpoint_if_cancelled()  # nothing is sent on behalf of the cancelled
    done = trio.Event()
    outcome: list[Resp | CallError] = []

    def on_done(response: Resp | None, error: CallError | None) -> None:
        if error is not None:
            outcome.append(error)
        elif response is not None:
            outcome.append(response)
        done.set()

    started = trio.current_time()
    pending = channel.start_unary(method, request, on_done, timeout=timeout, long_poll=parks)
    try:
        await done.wait()
    except trio.Cancelled:
        since = started if parks else trio.current_time()
        with trio.CancelScope(deadline=since + settle, shield=True):
            await done.wait()
        if not outcome:
            pending.reset()
            with trio.CancelScope(deadline=trio.current_time() + _CROSSING, shield=True):
                await done.wait()
        if not outcome or isinstance(outcome[0], CallError) or not brings(outcome[0]):
            pending.cancel()
            raise
        # What came is handed over; the cancel strikes at the caller's next checkpoint.
    [result] = outcome
    if isinstance(result, CallError):
        raise result
    return result
