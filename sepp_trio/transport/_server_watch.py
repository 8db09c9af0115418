"""Finds the peers that are gone, or that only look as if they were there."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from ._frames import Code

if TYPE_CHECKING:
    from ._server_link import ServerLink

_PING = b"\x3b\x7c\xdb\x7a\x0b\x87\x16\xb4"
"""The real server's payload."""


async def watch(link: ServerLink) -> None:
    """Give up a peer without a handshake, without a sign of life, or that takes nothing.

    Runs beside a connection; wakes rarely, so an idle connection costs next
    to nothing.  Returns when it has given the peer up.
    """
    config, core = link.server.config, link.core
    await trio.sleep(config.handshake_timeout)
    if not core.settings_received:
        link.give_up(Code.SETTINGS_TIMEOUT, "no HTTP/2 handshake in time")
        return
    progress, since = _progress(link), trio.current_time()
    while not core.closed:
        link.workers.rest()
        now = trio.current_time()
        if link.awaited_sign is None and now >= link.heard + config.keepalive_interval:
            link.awaited_sign = now
            core.ping(_PING)
            link.wake()
        if link.awaited_sign is None:
            due = link.heard + config.keepalive_interval
        else:
            due = link.awaited_sign + config.keepalive_timeout
            if now >= due:
                link.give_up(Code.NO_ERROR, "no sign of life")
                return
        if (current := _progress(link)) is None or current != progress:
            progress, since = current, now
        elif now >= since + config.stall_timeout:
            link.give_up(Code.ENHANCE_YOUR_CALM, "the peer takes nothing of what waits for it")
            return
        await trio.sleep_until(min(due, now + config.stall_timeout / 2))


def _progress(link: ServerLink) -> tuple[float, int, int] | None:
    """What changes as long as the peer takes what waits for it; None: nothing waits."""
    offsets = [stream.offset for stream in link.core.streams.values() if stream.offset != -1]
    if not offsets and link.sending_since == math.inf:
        return None
    return link.sending_since, link.answers_sent, sum(offsets)
