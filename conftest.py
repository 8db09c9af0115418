"""What holds for the tests and for the examples: the Hypothesis profiles."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# In CI the same examples every time: a failure there is a change's, not the dice's.
settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    max_examples=100,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],  # shared machines
)
settings.register_profile("dev", deadline=None, max_examples=200)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
