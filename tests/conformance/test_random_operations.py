"""Both servers, the same random operations: the same answers.

What the scenarios do not think of. walk.py says what may differ; `nox -s compare` goes further.
"""

from __future__ import annotations

import random
import time

import pytest

from tests.conformance.compare import CONFIGS, Comparison
from tests.conformance.servers import HOW_TO_GET_IT, real_binary
from tests.conformance.timers import LONGEST, Timers


@pytest.mark.real_server
@pytest.mark.skipif(real_binary() is None, reason=HOW_TO_GET_IT)
@pytest.mark.timeout(240)
@pytest.mark.parametrize("chapter", range(len(CONFIGS)), ids=["caps", "strict", "defaults"])
def test_random_operations_have_the_same_answers(chapter: int) -> None:
    comparison = Comparison(random.randrange(1_000_000))
    comparison.chapter(chapter, 120)
    assert comparison.operations == 120 or comparison.stalls


def test_nothing_is_asked_while_something_ends() -> None:
    timers, now = Timers(), time.time()
    timers.add(now + 0.01, now + 0.1, "lease")
    timers.wait_for(["another"])
    assert timers.in_the_way(["lease"], now, now + LONGEST)
    timers.wait_for(["lease"])
    assert time.time() > now + 0.1
    assert not timers.in_the_way(["lease"], time.time(), time.time() + LONGEST)


def test_an_end_of_its_own_is_far_from_all_others() -> None:
    timers, now = Timers(), time.time()
    timers.add(now + 1.0, now + 1.0, "order")
    timers.add(now + 1.05, now + 1.05, "order")
    timers.add(now + 1.15, now + 1.15, "another")
    at = timers.free_moment(now + 1.0, ["order"])
    assert now + 1.05 + LONGEST < at < now + 1.2
