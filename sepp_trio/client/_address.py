"""Addresses: ``host:port``, ``http://``, ``https://`` and ``unix:/path``; nothing is guessed."""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from typing import Literal

# A name as DNS, container networks and numeric IPv4 write it; underscores are common in the latter.
_HOST = re.compile(r"(?:[A-Za-z0-9_-]{1,63}\.)*[A-Za-z0-9_-]{1,63}\.?")
_LONGEST_HOST = 254  # 253 and a final dot
_ZONE = re.compile(r"[A-Za-z0-9._~-]+")
_PORT = re.compile("[0-9]{1,5}")

_FORMS = "host:port, http://host:port, https://host:port or unix:/path"


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """Where to dial. ``scheme`` is what the text said of TLS, ``None`` if nothing."""

    host: str
    port: int
    scheme: Literal["http", "https"] | None

    @property
    def authority(self) -> str:
        """The ``:authority`` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether what is sent stays on this machine."""
        if self.host.lower().rstrip(".") == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A Unix socket's path."""

    path: str

    authority = "localhost"
    is_loopback = True


def parse_address(text: str) -> TcpAddress | UnixAddress:
    """Read an address.

    IPv6 addresses stand in brackets; a port is always given; a URL may end in ``/`` but
    has no path, query or user.

    Raises:
        TypeError: not a string.
        ValueError: anything else than the four forms; names what was given and why not.
    """
    if not isinstance(text, str):
        raise TypeError(f"address must be a string or a callable, not {type(text).__name__}")
    scheme, separator, rest = text.partition("://")
    if text.startswith("unix:"):
        return _unix(text)
    if not separator:
        return _tcp(text, text, None)
    match scheme.lower():
        case "http":
            return _tcp(text, rest.removesuffix("/"), "http")
        case "https":
            return _tcp(text, rest.removesuffix("/"), "https")
    raise _wrong(text, f"unknown scheme {scheme!r}")


def is_host_name(text: str) -> bool:
    """Whether it is a name as DNS knows them, or a numeric IPv4 address."""
    return len(text) <= _LONGEST_HOST and _HOST.fullmatch(text) is not None


def _unix(text: str) -> UnixAddress:
    path = text.removeprefix("unix:")
    if not path.startswith("/") or path.strip("/") == "":
        raise _wrong(text, "a Unix socket needs an absolute path")
    if "\0" in path:
        raise _wrong(text, "the path contains a null character")
    try:
        os.fsencode(path)
    except UnicodeEncodeError as error:
        raise _wrong(text, f"no file can have this name ({error.reason})") from None
    return UnixAddress(path)


def _tcp(text: str, place: str, scheme: Literal["http", "https"] | None) -> TcpAddress:
    host, colon, port = place.rpartition(":")
    if not colon or place.endswith("]"):
        raise _wrong(text, "the port is missing (a sepp server's default is 50051)")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise _wrong(text, f"{host!r} is no IPv6 address") from None
        if (zone := host.partition("%")[2]) and not _ZONE.fullmatch(zone):
            raise _wrong(text, f"{zone!r} is no zone of an IPv6 address")
    elif ":" in host:
        raise _wrong(text, "an IPv6 address stands in brackets, as in [::1]:50051")
    elif not host:
        raise _wrong(text, "the host is missing")
    elif not host.isascii():
        raise _wrong(text, "a host name outside ASCII is written in its xn-- form")
    elif not is_host_name(host):
        raise _wrong(text, f"{host!r} is no host name")
    if not _PORT.fullmatch(port) or not 1 <= int(port) <= 65535:
        raise _wrong(text, f"the port must be between 1 and 65535, not {port!r}")
    return TcpAddress(host, int(port), scheme)


def _wrong(text: str, reason: str) -> ValueError:
    return ValueError(f"address must be {_FORMS}, not {text!r}: {reason}")
