"""A wake-up for one task."""

from __future__ import annotations

import trio


class Signal:
    """Wakes the one task that waits; remembers a wake-up that nobody waited for."""

    def __init__(self) -> None:
        self._set = False
        self._task: trio.lowlevel.Task | None = None

    def set(self) -> None:
        """Wake the task, or let its next ``wait`` return at once."""
        if self._task is None:
            self._set = True
        else:
            task, self._task = self._task, None
            trio.lowlevel.reschedule(task)

    async def wait(self) -> None:
        """Wait for ``set``. A checkpoint, and at least one turn of the scheduler: whatever
        else happens in that turn is seen as well."""
        if self._set:
            self._set = False
            await trio.lowlevel.checkpoint()
            return
        self._task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
