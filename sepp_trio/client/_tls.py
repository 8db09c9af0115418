"""The TLS context of a client, from its options; contradictions are refused."""

from __future__ import annotations

import ipaddress
import os
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeAlias

from ._address import TcpAddress, UnixAddress, is_host_name

PemSource: TypeAlias = "bytes | str | os.PathLike[str]"
"""PEM as ``bytes``, or the path of a file that holds it."""


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """The options of ``open_client`` that are about TLS."""

    tls: bool | ssl.SSLContext | None
    ca_certificate: PemSource | None
    client_certificate: tuple[PemSource, PemSource] | None
    server_hostname: str | None

    def given(self) -> list[str]:
        """Names of the options that make sense with TLS only."""
        names = [
            name
            for name in ("ca_certificate", "client_certificate", "server_hostname")
            if getattr(self, name) is not None
        ]
        return names if self.tls in (None, False) else ["tls", *names]


def tls_context(
    address: TcpAddress | UnixAddress | None, options: TlsOptions
) -> ssl.SSLContext | None:
    """The context to dial with, ``None`` for plain text.

    TLS is on with ``https://``, with ``tls`` and with any option that only TLS has; it
    never is off quietly where one of them asks for it. ``address`` is ``None`` when the
    caller brings the stream.

    Raises:
        TypeError, ValueError: an option of another type, unreadable, or contradicted.
    """
    if options.tls is not None and not isinstance(options.tls, (bool, ssl.SSLContext)):
        raise TypeError(f"tls must be a bool or an SSLContext, not {type(options.tls).__name__}")
    if options.server_hostname is not None and not isinstance(options.server_hostname, str):
        kind = type(options.server_hostname).__name__
        raise TypeError(f"server_hostname must be a string, not {kind}")
    if options.server_hostname is not None:
        _check_name(options.server_hostname)
    wants = options.given()
    if address is None or isinstance(address, UnixAddress):
        if wants:
            kind = "a stream of your own" if address is None else "a Unix socket"
            raise ValueError(f"{wants[0]} has no use with {kind}: TLS is spoken over TCP only")
        return None
    if address.scheme == "http" and wants:
        raise ValueError(f"{wants[0]} asks for TLS but http:// means plain text: use https://")
    if options.tls is False:
        if address.scheme == "https":
            raise ValueError("tls is False but https:// means TLS: use http://")
        if wants:
            raise ValueError(f"tls is False but {wants[0]} has a use with TLS only")
        return None
    if not wants and address.scheme != "https":
        return None
    if isinstance(options.tls, ssl.SSLContext):
        for name in ("ca_certificate", "client_certificate"):
            if getattr(options, name) is not None:
                raise ValueError(f"{name} cannot be added to an SSLContext: load it into tls")
        if options.tls.protocol is ssl.PROTOCOL_TLS_SERVER:
            raise ValueError("tls is an SSLContext for servers: make one with PROTOCOL_TLS_CLIENT")
        return options.tls
    return _context(options.ca_certificate, options.client_certificate)


def _check_name(name: str) -> None:
    """Refuse what no certificate can name."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        if not is_host_name(name):
            raise ValueError(
                f"server_hostname must be a host name or an IP address, not {name!r}"
            ) from None


def _context(
    authority: PemSource | None, pair: tuple[PemSource, PemSource] | None
) -> ssl.SSLContext:
    if authority is None:
        context = ssl.create_default_context()
    else:
        pem = _read(authority, "ca_certificate")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            context.load_verify_locations(cadata=pem.decode("ascii"))
        except (ssl.SSLError, ValueError) as error:
            raise ValueError(f"ca_certificate holds no PEM certificate: {error}") from None
    if pair is not None:
        _load_pair(context, pair)
    return context


def _load_pair(context: ssl.SSLContext, pair: object) -> None:
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise TypeError("client_certificate must be a tuple of two: certificate (chain) and key")
    pem = b"\n".join(_read(part, f"client_certificate[{index}]") for index, part in enumerate(pair))
    # OpenSSL reads certificates from files only; this one is readable by its owner alone.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pair.pem")
        path.touch(0o600)
        path.write_bytes(pem)
        try:
            context.load_cert_chain(path, password=_no_password)
        except ssl.SSLError as error:
            raise ValueError(f"client_certificate cannot be used: {error.args[-1]}") from None


def _no_password() -> NoReturn:
    # Without this OpenSSL would ask on the terminal, and wait.
    raise ValueError("client_certificate[1] is encrypted: give the key without a passphrase")


def _read(source: object, field: str) -> bytes:
    if isinstance(source, (bytes, bytearray)):
        return bytes(source)
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"{field} must be PEM bytes or a path, not {type(source).__name__}")
    if isinstance(source, str) and source.lstrip().startswith("-----BEGIN"):
        raise ValueError(f"{field} is PEM text: give it as bytes (a string is a path)")
    try:
        return Path(source).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: no path can be like that
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{field} cannot be read from {str(source)!r}: {reason}") from None
