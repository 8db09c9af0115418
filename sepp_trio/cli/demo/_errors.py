"""The one error of the demo: something a person can read in one line."""

from __future__ import annotations


class DemoError(Exception):
    """The demo cannot go on; the message says why, in one line."""
