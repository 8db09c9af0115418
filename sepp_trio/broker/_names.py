"""The structural rule of queue names."""

from __future__ import annotations

import re

_FORBIDDEN = re.compile("[/\x00-\x1f\x7f-\x9f]")


def queue_name_problem(name: str) -> str | None:
    """What is wrong with a queue's name, or ``None``; its length is another matter."""
    if not name:
        return "must not be empty"
    if name in (".", ".."):
        return "must not be '.' or '..'"
    if _FORBIDDEN.search(name):
        return "must not contain '/' or control characters"
    return None
