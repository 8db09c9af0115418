"""The version, of the package and of what it tells the server."""

__version__ = "0.1.0"
