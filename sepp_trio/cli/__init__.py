"""The `sepp-trio` command."""

from ._main import main as main
