"""What needs Trio says so, where it is not there."""

from __future__ import annotations

import trio


def check_in_trio(name: str) -> None:
    """Refuse to work outside a run of Trio.

    Raises:
        RuntimeError: names what needs it, and how to have it.
    """
    if not trio.lowlevel.in_trio_run():
        raise RuntimeError(
            f"{name} needs Trio: call it within trio.run, or in an async test that pytest-trio"
            " runs (trio_mode = true, or @pytest.mark.trio)"
        )
