"""Section 8.3: TLS and ALPN."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest

from tests.conformance.configs import TLS
from tests.conformance.frames import Wire
from tests.conformance.probes.base import probe, works
from tests.conformance.servers import certificates

if TYPE_CHECKING:
    from tests.conformance.servers import Server


def _context(*protocols: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=certificates()["ca.crt"].decode())
    if protocols:
        context.set_alpn_protocols(protocols)
    return context


@probe(config=TLS)
def alpn_chooses_h2(server: Server) -> None:
    for protocols in (("h2",), ("h2", "http/1.1"), ("http/1.1", "h2")):
        with Wire(server.address, tls=_context(*protocols)) as wire:
            assert wire.tls.selected_alpn_protocol() == "h2"
            works(wire)


@probe(config=TLS)
def a_client_without_alpn_gets_http2(server: Server) -> None:
    with Wire(server.address, tls=_context()) as wire:
        assert wire.tls.selected_alpn_protocol() is None
        works(wire)


@probe(config=TLS)
def a_client_that_offers_only_http1_is_refused(server: Server) -> None:
    try:
        wire = Wire(server.address, tls=_context("http/1.1"))
    except OSError:
        return  # in the handshake
    with wire:  # or right behind it
        wire.until_closed()
        assert not wire.frames


@probe(config=TLS)
def tls_1_2_and_1_3_are_spoken(server: Server) -> None:
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = _context("h2")
        context.minimum_version = context.maximum_version = version
        with Wire(server.address, tls=context) as wire:
            assert wire.tls.version() == version.name.replace("_", ".")
            works(wire)


@probe(config=TLS)
def a_plaintext_client_of_a_tls_server_is_cut_off(server: Server) -> None:
    with Wire(server.address) as wire:
        with pytest.raises(Exception):  # noqa: B017 - a TLS alert is no frame
            works(wire)
        wire.frames.clear()
        assert not wire.replies[1].headers
