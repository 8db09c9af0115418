"""What must hold for every job, judged when all is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sepp_trio.lease._held import margin_of
from sepp_trio.testing import Fail, Happening, LoseReply
from sepp_trio.testing._faults import CallFault

from .fleet import Process
from .truth import Delivery, HandlerRun, JobStory, Truth

_AFTERMATH = 3.0
"""Seconds after a connection was lost in which calls may suffer from it: notice, dial, repeat."""

_HOLE_AFTERMATH = 20.0
"""The same for a connection on which nothing passes: it takes so long to be given up."""

_ROUNDING = 0.0015
"""Seconds: the server counts whole milliseconds."""


@dataclass(frozen=True)
class Trouble:
    """A time in which a process, or all of them, could not reach the server as they should."""

    began: float
    ended: float
    process: int | None


def troubles(processes: Sequence[Process], server: Sequence[Happening]) -> list[Trouble]:
    """When the network, or the server, was not there."""
    found = [Trouble(item.at, item.until + _AFTERMATH, None) for item in server]
    for process in processes:
        assert process.proxy is not None
        for item in process.proxy.happened:
            name = type(item.fault).__name__
            if name == "BlackHole":
                found.append(Trouble(item.at, item.until + _HOLE_AFTERMATH, process.number))
            elif name == "DropConnection":
                found.append(Trouble(item.at, item.at + _AFTERMATH, process.number))
            elif isinstance(item.fault, LoseReply) and not item.fault.silent:
                # Its reply, and with it the connection, may go down some time later.
                found.append(Trouble(item.at, item.at + 10, process.number))
    return found


class Judge:
    """Looks at every story, and complains."""

    def __init__(
        self,
        truth: Truth,
        processes: Sequence[Process],
        happened: Sequence[Happening],
        complain: Callable[[str, str], None],
    ) -> None:
        self._truth = truth
        self._complain = complain
        self._troubles = troubles(processes, happened)
        self._crashes = {name: at for process in processes for name, at in process.crashes}
        self._beating = {
            name: beating for process in processes for name, beating in process.beating.items()
        }
        self.figures: Counter[str] = Counter()

    def judge(self) -> None:
        """Judge all jobs."""
        for story in self._truth.jobs.values():
            if not story.end:
                self.figures["lost"] += 1
                self._complain(story.job_id, "lost: neither acked nor a dead letter")
                continue
            self._cause(story)
            self._double_runs(story)
            for delivery in story.deliveries.values():
                self._delivery(delivery)

    # ---- the cause of the end ----

    def _cause(self, story: JobStory) -> None:
        last = max(story.deliveries.values(), key=lambda delivery: delivery.attempt)
        outcomes = {run.outcome for run in last.runs}
        malformed = story.job_id in self._truth.malformed
        if story.end == "acked":
            right = last.stolen is not None or any(
                run.kind == "ack" or run.outcome in ("returned", "acked") for run in last.runs
            )
        elif story.end == "REJECTED":
            right = malformed or "permanent" in outcomes
        elif story.end == "ATTEMPTS_EXHAUSTED":
            right = last.attempt == story.max_attempts and (
                "failed" in outcomes
                or "cancelled" in outcomes
                or not last.runs
                or any(run.stubborn for run in last.runs)
            )
        else:
            right = last.attempt == story.max_attempts and last.how == "expired"
        if last.attempt > story.max_attempts or not right:
            self.figures["wrong cause"] += 1
            self._complain(story.job_id, f"ended as {story.end}, which is not right")

    # ---- twice at once ----

    def _double_runs(self, story: JobStory) -> None:
        runs = sorted(
            (run for delivery in story.deliveries.values() for run in delivery.runs),
            key=lambda run: run.began,
        )
        for earlier, later in pairwise(runs):
            if earlier.ended is not None and earlier.ended <= later.began:
                continue
            # The holder of the older lease, which may have begun later.
            older = min(earlier, later, key=lambda run: run.attempt)
            delivery = story.deliveries[older.attempt]
            if older.stubborn:
                self.figures["double runs: cancel swallowed"] += 1
            elif delivery.stolen is not None or delivery.jumped:
                self.figures["double runs: lease stolen, or clock set"] += 1
            elif older.kind == "ack":
                continue
            else:
                self.figures["double runs"] += 1
                self._complain(
                    story.job_id, f"attempts {earlier.attempt} and {later.attempt} run at once"
                )

    # ---- one lease ----

    def _delivery(self, delivery: Delivery) -> None:
        for run in delivery.runs:
            self._in_time(delivery, run)
        if delivery.how == "expired":
            why = self._why_expired(delivery)
            self.figures[f"leases run out: {why or 'stranded'}"] += 1
            if why is None:
                self.figures["stranded"] += 1
                self._complain(
                    delivery.job_id,
                    f"attempt {delivery.attempt} was stranded until its lease ended",
                )
        if delivery.left_by_return and self._why_expired(delivery) is None:
            self.figures["left by a worker that returned"] += 1
            self._complain(
                delivery.job_id,
                f"{delivery.worker} returned, and left attempt {delivery.attempt} leased",
            )

    def _in_time(self, delivery: Delivery, run: HandlerRun) -> None:
        if run.cancelled is not None and run.reason is None and run.worker not in self._crashes:
            self.figures["cancelled without a reason"] += 1
            self._complain(
                delivery.job_id, f"attempt {delivery.attempt} was cancelled, nobody says why"
            )
        if run.kind == "shield" or delivery.jumped:
            return
        due = delivery.promised - margin_of(delivery.length) + _ROUNDING
        stopped = run.cancelled if run.cancelled is not None else run.ended
        if run.outcome == "acked":
            return
        if stopped is None or stopped > due:
            self.figures["not cancelled in time"] += 1
            self._complain(
                delivery.job_id,
                f"attempt {delivery.attempt} ran on until {stopped}, its lease was to end at "
                f"{delivery.promised:.3f}",
            )

    def _why_expired(self, delivery: Delivery) -> str | None:
        """Why nobody could keep or settle this lease; ``None``: somebody should have."""
        ended = delivery.ended if delivery.ended is not None else delivery.promised
        crashed = self._crashes.get(delivery.worker or "")
        if delivery.stolen is not None:
            return "stolen"
        if delivery.jumped:
            return "server clock set"
        if delivery.worker is None:
            lost = delivery.lost or self._trouble(None, delivery)
            return "reserve reply lost" if lost else None
        if crashed is not None and crashed <= ended:
            return "worker crashed"
        if any(run.stubborn for run in delivery.runs):
            return "handler did not react"
        if not self._beating[delivery.worker] and any(
            run.reason == "lease lost" for run in delivery.runs
        ):
            return "handler outlasted its lease"
        if any(_is_hard(at, fault, ended) for at, fault in delivery.call_faults):
            return "its calls failed"
        process = int(delivery.worker.removeprefix("p").split(".")[0])
        if self._trouble(process, delivery):
            return "network or server down"
        return None

    def _trouble(self, process: int | None, delivery: Delivery) -> bool:
        ended = delivery.ended if delivery.ended is not None else delivery.promised
        return any(
            trouble.began <= ended
            and trouble.ended >= delivery.began
            and (process is None or trouble.process in (None, process))
            for trouble in self._troubles
        )


def _is_hard(at: float, fault: CallFault, ended: float) -> bool:
    """Whether a fault of a call may cost a lease: a plain failure may not, if there is time
    to repeat the call."""
    if isinstance(fault, Fail) or (isinstance(fault, LoseReply) and not fault.silent):
        return ended - at < _AFTERMATH
    return True
