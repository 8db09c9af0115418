"""One delivery: the handler runs in the worker's task, recorded or cancelled, and is watched."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import trio

from sepp_trio.types import Payload
from sepp_trio.worker import JobCtx
from sepp_trio.worker.registry import Entry, Registry, check_handler

from .._stuck import break_shields
from .._threads import waits_for_thread
from ._aftermath import Aftermath, Fault
from ._lines import OwnCode, Place
from ._order import SteadyOrder
from ._record import Recording
from ._report import Cause, Checkpoint, Line
from ._strike import Approach, ApproachBeforeStep, Steps
from ._threads import ThreadChecks
from ._tree import Tree
from ._trio import number_of

_GIVES_UP: Final = "the sweep gives up"


class Swept:
    """The handler, as the deliveries call it: in a thread if it is a plain function."""

    def __init__(self, handler: Any) -> None:
        self.own = OwnCode(handler)
        self.order = SteadyOrder()
        self.known: dict[Checkpoint, Checkpoint] = {}
        """One object for all checkpoints that are equal: each history has most of them again."""
        self.thread: int | None = None
        """That of a plain function while it runs."""
        self.uses_threads = not check_handler(handler)

        def in_thread(payload: Payload | None, ctx: JobCtx) -> Any:
            self.thread = threading.get_ident()
            return handler(payload, ctx)

        registry = Registry()
        called = in_thread if self.uses_threads else handler
        registry.add("swept", called, timeout=None, max_in_flight=None, replace=False)
        entry = registry.find("swept")
        assert isinstance(entry, Entry)
        self.call: Callable[[Payload | None, JobCtx], Awaitable[None]] = entry.call


class Delivery:
    """Made before the job comes; ``over`` is set when the handler has ended."""

    def __init__(
        self,
        swept: Swept,
        cause: Cause,
        checkpoint: Checkpoint | None,
        strike: Callable[[Cause, JobCtx], str | None],
        *,
        record: bool,
        limit: float,
    ) -> None:
        self.cause = cause
        self.checkpoint = checkpoint
        self.attempt = 0
        self.over = trio.Event()
        self.struck: Line | None = None
        """Where the cancel found the handler, if it got to its checkpoint."""
        self.checkpoints: tuple[Checkpoint, ...] | None = None
        """All of them, if they were recorded."""
        self.error: BaseException | None = None
        self.cancel_reason: str | None = None
        self.duration = 0.0
        self.watch = trio.CancelScope()
        """What the sweep waits in for the handler's end."""
        self.lingers = trio.Event()
        """Set when it has ended, or another worker has its job and it is still in its cleanup."""
        self.failure: BaseException | None = None
        """What went wrong with the sweep itself."""
        self.aftermath: Aftermath | None = None
        self._swept = swept
        self._strike = strike
        self._record = record
        self._limit = limit
        self._tree: Tree | None = None
        self._checks: ThreadChecks | None = None
        self._ctx: JobCtx | None = None
        self._instruments: list[trio.abc.Instrument] = []

    @property
    def fault(self) -> Fault | None:
        """What the handler has done wrong, whatever the invariant says."""
        return None if self.aftermath is None else self.aftermath.fault

    async def run(self, payload: Payload | None, ctx: JobCtx) -> None:
        """Run the handler; in its worker's task."""
        try:
            await self._run(payload, ctx)
        except BaseException as error:
            if error is not self.error and self.failure is None:
                self.failure = error
            raise
        finally:
            self.over.set()
            self.lingers.set()

    async def _run(self, payload: Payload | None, ctx: JobCtx) -> None:
        swept, own, order = self._swept, self._swept.own, self._swept.order
        self._ctx = ctx
        self.attempt = ctx.attempt
        began = trio.current_time()
        self.watch.deadline = began + self._limit
        swept.thread = None
        tree = self._tree = Tree(trio.lowlevel.current_task())
        order.begin(tree.tasks)
        tree.on_company = order.has_company
        recording: Recording | None = None
        if self._record or swept.uses_threads:
            self._checks = ThreadChecks(tree, own, lambda: swept.thread)
        with self._installed(tree):
            if self._record:
                assert self._checks is not None
                recording = Recording(tree, own, order, self._checks, swept.known)
                self._install(recording)
            elif self.checkpoint is None or self.checkpoint.moment == "end":
                tree.on_company = self._count_steps
            elif self.checkpoint.moment == "start":
                self._cancel(own.handler)
            else:
                kind = ApproachBeforeStep if self.checkpoint.moment == "resumes" else Approach
                self._install(kind(self.checkpoint, self._cancel, tree, own, order, self._checks))
            try:
                await swept.call(payload, ctx)
            except BaseException as error:
                self.error = error
                raise
            finally:
                self._remove_all()
                if recording is not None:
                    self.checkpoints = recording.end()
                    swept.uses_threads |= self._checks is not None and self._checks.found
                if self.checkpoint is not None and self.checkpoint.moment == "end":
                    self._cancel(own.handler)
                    self._remove_all()
                self.cancel_reason = ctx.cancel_reason
                self.duration = trio.current_time() - began
                if self.aftermath is not None:
                    self.aftermath.end(self.error)

    def _count_steps(self) -> None:
        """There are several tasks from now on; one alone has no order."""
        assert self._tree is not None
        self._install(Steps(self._tree, self._swept.order))
        self._swept.order.has_company()

    # ---- the cancel ----

    def _cancel(self, line: Line) -> None:
        """The moment has come. Called between two steps of the handler's tasks."""
        ctx, tree = self._ctx, self._tree
        assert ctx is not None
        assert tree is not None
        self.struck = line
        try:
            left = ctx.remaining()
            reason = self._strike(self.cause, ctx)
            if reason is None:
                if not self._instruments:
                    self._install(Steps(tree, self._swept.order))
                return
            after = self._watch_cancel(reason)
            if self.cause == "takeover":
                after.on_lingering = self.lingers.set
            task = trio.lowlevel.current_task()
            if task in tree.alive:
                after.look_at_wait(task)
            # After a lost lease there is no time that would be right: it gets a whole lease.
            now = trio.current_time()
            self.watch.deadline = now + (left if ctx._lease.lost is None else ctx._lease.asked)
        except Exception as error:  # an instrument's errors would only be logged
            self.failure = error
            self.watch.cancel()

    def _watch_cancel(self, reason: str) -> Aftermath:
        swept = self._swept
        assert self._ctx is not None
        assert self._tree is not None
        scope = self._ctx._lease.scope
        assert scope is not None
        self._remove_all()
        self.aftermath = Aftermath(scope, reason, self._tree, swept.own, swept.order, self._checks)
        self._install(self.aftermath)
        return self.aftermath

    def force(self, fault: Fault) -> None:
        """End a handler that does not end, which is its fault: by a cancel, then without its
        shields, then by force. A thread is waited for: nothing can end it."""
        assert self._tree is not None
        assert self._ctx is not None
        lease = self._ctx._lease
        assert lease.scope is not None
        if self.aftermath is None:
            lease.cancel(_GIVES_UP)
            self._watch_cancel(_GIVES_UP).add_fault(*fault)
            return
        self.aftermath.add_fault(*fault)
        if not break_shields(self._tree.root, lease.scope):
            self.aftermath.gives_up = not any(map(waits_for_thread, self._tree.alive))

    def stuck_at(self) -> Place:
        """Where the handler stands: the last task that it waits for."""
        assert self._tree is not None
        tree, own = self._tree, self._swept.own
        leaves = [
            task for task in tree.alive if not any(n.child_tasks for n in task.child_nurseries)
        ]
        latest = max(leaves, key=number_of)
        place = self._checks.place(latest) if self._checks is not None else None
        return place or own.place(latest, tree.root) or Place(own.handler, None, None)

    # ---- instruments ----

    @contextmanager
    def _installed(self, tree: Tree) -> Iterator[None]:
        trio.lowlevel.add_instrument(tree)
        try:
            yield
        finally:
            self._remove_all()
            _remove(tree)

    def _install(self, instrument: trio.abc.Instrument) -> None:
        trio.lowlevel.add_instrument(instrument)
        self._instruments.append(instrument)

    def _remove_all(self) -> None:
        while self._instruments:
            _remove(self._instruments.pop())


def _remove(instrument: trio.abc.Instrument) -> None:
    try:
        trio.lowlevel.remove_instrument(instrument)
    except KeyError:
        # Trio has done so: what an instrument raises it logs, and goes on without it.
        raise RuntimeError(
            f"the sweep's {type(instrument).__name__} has failed, see the log of"
            " trio.abc.Instrument; does it know this version of Trio?"
        ) from None
