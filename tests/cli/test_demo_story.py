"""What the demo says: events of workers, the bar, the report."""

from __future__ import annotations

import io
import json

import pytest

from sepp_trio.cli.demo._errors import DemoError
from sepp_trio.cli.demo._events import Event, Tally
from sepp_trio.cli.demo._progress import Console
from sepp_trio.cli.demo._report import Report
from sepp_trio.cli.demo._target import Proof


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def report(**changes: object) -> Report:
    proof = Proof(rows=10, distinct_rows=10, digest="a" * 64, source_digest="a" * 64,
                  chunks_by_commits={1: 3})  # fmt: skip
    values: dict[str, object] = {
        "proof": proof, "jobs": 3, "redelivered_chunks": 2, "redeliveries": 2,
        "already_committed": 1, "jobs_left": 0, "seconds": 1.25,
    }  # fmt: skip
    return Report(**{**values, **changes})  # type: ignore[arg-type]


def told(report: Report) -> str:
    stream = io.StringIO()
    report.tell(Console(stream))
    return stream.getvalue()


def test_an_event_survives_its_line() -> None:
    event = Event("skipped", 300, 2)
    assert Event.parse(str(event)) == event


@pytest.mark.parametrize("line", ["", "began", "began x 1", "began 1 -1", "ended 1 1", "a b c d"])
def test_a_line_that_is_no_event_is_refused(line: str) -> None:
    with pytest.raises(DemoError, match="unexpected"):
        Event.parse(line)


def test_half_way_needs_half_the_chunks_in_and_one_in_hand() -> None:
    tally = Tally(4)
    for event in (Event("began", 0, 1), Event("committed", 0, 1), Event("began", 1, 1)):
        tally.add(event)
    assert not tally.half_way
    tally.add(Event("committed", 1, 1))
    assert not tally.half_way  # nothing in hand: nothing would come back
    tally.add(Event("began", 2, 1))
    assert tally.half_way


def test_redeliveries_and_skipped_chunks_are_counted() -> None:
    tally = Tally(2)
    for event in (Event("began", 0, 1), Event("began", 1, 1), Event("committed", 1, 1)):
        tally.add(event)
    assert tally.worker_died() == 1
    for event in (
        Event("began", 0, 2), Event("committed", 0, 2), Event("began", 1, 2), Event("skipped", 1, 2)
    ):  # fmt: skip
        tally.add(event)
    assert tally.complete
    assert (tally.redelivered, tally.redeliveries, tally.skipped) == ({0, 1}, 2, {1})
    assert tally.worker_died() == 0


def test_a_terminal_gets_one_line_that_is_drawn_over() -> None:
    stream = Terminal()
    console = Console(stream)
    console.progress(1, 4)
    console.progress(4, 4)
    console.line("done", "all in")
    console.close()
    assert stream.getvalue().split("\r") == [
        "",
        "import     [#######.......................]  25 %  1/4 chunks",
        f"import     [{'#' * 30}] 100 %  4/4 chunks\ndone       all in\n",
    ]


def test_the_bar_is_left_on_a_line_of_its_own() -> None:
    stream = Terminal()
    console = Console(stream)
    console.progress(1, 4)
    console.close()
    console.close()
    assert stream.getvalue().endswith("chunks\n")


def test_a_log_gets_a_line_a_quarter() -> None:
    stream = io.StringIO()
    console = Console(stream)
    for done in range(1, 101):
        console.progress(done, 100)
    console.close()
    assert stream.getvalue().splitlines() == [
        f"import     {share:3d} %  {share}/100 chunks" for share in (25, 50, 75, 100)
    ]


def test_a_good_report_tells_the_proof_and_what_came_back() -> None:
    text = told(report())
    assert "10 rows, each there exactly once" in text
    assert "3 chunks committed exactly once" in text
    assert "2 chunks of the killed worker came back as attempt 2" in text
    assert "1 had been committed already" in text
    assert "3 jobs, 2 redelivered, 1.2 seconds" in text
    assert "FAILED" not in text


def test_a_report_without_a_crash_says_nothing_of_one() -> None:
    assert "killed" not in told(report(redelivered_chunks=0, redeliveries=0, already_committed=0))


def test_a_bad_import_is_told_as_failed() -> None:
    proof = Proof(rows=11, distinct_rows=10, digest="b" * 64, source_digest="a" * 64,
                  chunks_by_commits={0: 1, 1: 1, 2: 1})  # fmt: skip
    failed = report(proof=proof, jobs_left=1)
    assert not failed.succeeded
    text = told(failed)
    for line in ("11 rows, 10 different ones", "1 chunk committed NEVER",
                 "1 chunk committed 2 TIMES", "1 job left in the queue"):  # fmt: skip
        assert line in text


def test_the_json_has_all_of_it() -> None:
    value = json.loads(report().to_json())
    assert value["ok"] is True
    assert value["proof"]["rows"] == 10
    assert value["proof"]["chunks_by_commits"] == {"1": 3}
    assert value["jobs"] == 3
    assert value["seconds"] == 1.25
