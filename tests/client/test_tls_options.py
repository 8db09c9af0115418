"""TLS options: what turns TLS on, what contradicts, what cannot be read."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from sepp_trio.client._address import parse_address
from sepp_trio.client._tls import TlsOptions, tls_context


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def ca_pem(authority: trustme.CA) -> bytes:
    return authority.cert_pem.bytes()


def options(**given: Any) -> TlsOptions:
    values: dict[str, Any] = {
        "tls": None,
        "ca_certificate": None,
        "client_certificate": None,
        "server_hostname": None,
    }
    return TlsOptions(**{**values, **given})


def context(text: str | None, **given: Any) -> ssl.SSLContext | None:
    return tls_context(None if text is None else parse_address(text), options(**given))


@pytest.mark.parametrize("text", ["localhost:1", "http://localhost:1", "unix:/run/x", None])
def test_plain_text_is_plain_text(text: str | None) -> None:
    assert context(text) is None
    assert context(text, tls=False) is None


def test_https_means_tls_with_the_systems_certificates() -> None:
    made = context("https://localhost:1")
    assert made is not None
    assert made.verify_mode is ssl.CERT_REQUIRED
    assert made.check_hostname


def test_each_option_turns_tls_on(ca_pem: bytes, tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_bytes(ca_pem)
    assert context("localhost:1", tls=True) is not None
    for name in ("queue", "queue.example.", "127.0.0.1", "::1"):
        assert context("localhost:1", server_hostname=name) is not None
    for source in (ca_pem, file, str(file)):
        made = context("localhost:1", ca_certificate=source)
        assert made is not None
        assert len(made.get_ca_certs()) == 1


def test_a_context_of_the_caller_is_used_as_it_is() -> None:
    own = ssl.create_default_context()
    assert context("https://localhost:1", tls=own) is own
    assert context("localhost:1", tls=own, server_hostname="queue") is own


def test_a_client_certificate_is_loaded_from_bytes_and_files(
    authority: trustme.CA, tmp_path: Path
) -> None:
    issued = authority.issue_cert("worker")
    chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    key = tmp_path / "key.pem"
    key.write_bytes(issued.private_key_pem.bytes())
    assert context("localhost:1", client_certificate=(chain, key)) is not None


@pytest.mark.parametrize(
    ("text", "given", "words"),
    [
        ("http://localhost:1", {"tls": True}, "tls asks for TLS but http:// means plain text"),
        ("http://localhost:1", {"server_hostname": "x"}, "server_hostname asks for TLS but http"),
        ("http://localhost:1", {"ca_certificate": b"x"}, "ca_certificate asks for TLS but http"),
        ("https://localhost:1", {"tls": False}, "tls is False but https:// means TLS"),
        ("localhost:1", {"tls": False, "server_hostname": "x"}, "tls is False but server_hostname"),
        ("unix:/run/x", {"tls": True}, "tls has no use with a Unix socket"),
        (None, {"server_hostname": "x"}, "server_hostname has no use with a stream of your own"),
        *(
            ("localhost:1", {"server_hostname": name}, "server_hostname must be a host name or an")
            for name in ("", ".x", "a b", "a\0b", "ä.example", "\ud800", "x" * 300, "[::1]")
        ),
        (
            "localhost:1",
            {"tls": ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)},
            "tls is an SSLContext for servers",
        ),
        ("localhost:1", {"ca_certificate": b""}, "ca_certificate holds no PEM certificate"),
        ("localhost:1", {"ca_certificate": b"\xff"}, "ca_certificate holds no PEM certificate"),
        (
            "localhost:1",
            {"ca_certificate": "-----BEGIN CERTIFICATE-----"},
            "ca_certificate is PEM text: give it as bytes",
        ),
        (
            "localhost:1",
            {"ca_certificate": "/no/such/file"},
            "ca_certificate cannot be read from '/no/such/file': No such file",
        ),
        ("localhost:1", {"ca_certificate": "a\0b"}, "ca_certificate cannot be read from 'a"),
        (
            "localhost:1",
            {"client_certificate": ("\ud800", b"")},
            r"client_certificate\[0\] cannot be read",
        ),
        (
            "localhost:1",
            {"client_certificate": (b"", b"")},
            "client_certificate cannot be used",
        ),
    ],
)
def test_contradictions_and_unusable_values_are_refused(
    text: str | None, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        context(text, **given)


def test_certificates_go_into_the_callers_context_by_the_caller(ca_pem: bytes) -> None:
    own = ssl.create_default_context()
    with pytest.raises(ValueError, match="ca_certificate cannot be added to an SSLContext"):
        context("localhost:1", tls=own, ca_certificate=ca_pem)
    with pytest.raises(ValueError, match="client_certificate cannot be added to an SSLContext"):
        context("localhost:1", tls=own, client_certificate=(b"", b""))


def test_a_key_of_another_certificate_is_refused(authority: trustme.CA) -> None:
    one, two = authority.issue_cert("one"), authority.issue_cert("two")
    pair = (one.cert_chain_pems[0].bytes(), two.private_key_pem.bytes())
    with pytest.raises(ValueError, match="client_certificate cannot be used"):
        context("localhost:1", client_certificate=pair)


def test_an_encrypted_key_is_refused_and_nobody_is_asked(
    authority: trustme.CA, tmp_path: Path
) -> None:
    from cryptography.hazmat.primitives import serialization

    issued = authority.issue_cert("worker")
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    with pytest.raises(ValueError, match=r"client_certificate\[1\] is encrypted"):
        context("localhost:1", client_certificate=(issued.cert_chain_pems[0].bytes(), encrypted))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tls": "yes"}, "tls must be a bool or an SSLContext, not str"),
        ({"ca_certificate": 5}, "ca_certificate must be PEM bytes or a path, not int"),
        ({"client_certificate": b"x"}, "client_certificate must be a tuple of two"),
        ({"client_certificate": (b"x",)}, "client_certificate must be a tuple of two"),
        ({"client_certificate": (b"x", 5)}, r"client_certificate\[1\] must be PEM bytes or a path"),
        ({"server_hostname": b"x"}, "server_hostname must be a string, not bytes"),
    ],
)
def test_options_of_another_type_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        context("localhost:1", **given)
